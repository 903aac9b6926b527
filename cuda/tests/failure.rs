//! What is said when work of the program's own fails on the device that Gleaner uses: on a device only, in a process of its own, as
//! nothing there works afterwards.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod devices;

use std::ffi::CString;
use std::ptr;

use devices::{Program, enter, on_real};
use gleaner_algorithms::device::{Device, Format, Given};

/// Writes to an address where there is nothing.
const FAULTY: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry faulty()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}";

#[test]
fn a_kernel_of_the_program_that_fails_is_said_with_what_was_under_way() {
    on_real(|cuda| {
        let n = 1 << 20;
        let program = Program::new(cuda, &vec![1.0; n], Format::Float32);
        let mut values = cuda.zeros(n).unwrap();
        values.accumulate(0, Given::Device(program.slice(0..n)), true, &[None]).unwrap();
        assert_eq!(values.check().unwrap(), None);

        let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
        enter();
        let text = CString::new(FAULTY).unwrap();
        driver!(cuModuleLoadData(&mut module, text.as_ptr().cast()));
        driver!(cuModuleGetFunction(&mut kernel, module, c"faulty".as_ptr()));
        driver!(cuLaunchKernel(
            kernel,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut()
        ));

        let added = values.accumulate(0, Given::Device(program.slice(0..n)), false, &[None]);
        let error = added.and_then(|()| values.begin()).and_then(|()| values.check().map(drop)).unwrap_err();
        let sentence = error.to_string();
        println!("{sentence}");
        for words in
            [&*cuda.name(), "has failed", "ILLEGAL_ADDRESS", "This process can use the device no more"]
        {
            assert!(sentence.contains(words), "expected {words:?} in: {sentence}");
        }
        // From now on that is what is said.
        assert_eq!(values.read(0..1).unwrap_err(), error);
        assert_eq!(cuda.zeros(1).unwrap_err(), error);
    });
}
