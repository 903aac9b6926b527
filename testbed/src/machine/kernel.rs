//! The kernel without its compression. The emulated processor takes ten seconds to unpack it at every start, and the
//! real one takes one, once.

use std::fs;
use std::path::Path;

use super::{MachineError, modules};

/// How compressed files of some formats begin, and how their names end.
const FORMATS: [(&[u8], &str); 3] =
    [(b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zst"), (b"\x1f\x8b\x08", "gz")];

/// The kernel inside a `vmlinuz`, if it is one that qemu can start: an ELF file with an entry for PVH. Where it cannot be
/// had, the `vmlinuz` starts as well, only slower.
pub(super) fn unpacked(vmlinuz: &[u8], place: &Path) -> Result<Option<Vec<u8>>, MachineError> {
    let Some((payload, ending)) = payload(vmlinuz) else { return Ok(None) };
    let folder = tempfile::tempdir_in(place).map_err(|e| MachineError::file(place, e))?;
    let path = folder.path().join("payload").with_extension(ending);
    fs::write(&path, payload).map_err(|e| MachineError::file(&path, e))?;
    Ok(modules::content(&path).ok().filter(|kernel| starts_by_pvh(kernel)))
}

/// The compressed kernel and the ending of its format. The offsets are those of the boot protocol
/// (`Documentation/arch/x86/boot.rst`), version 2.08 or later.
fn payload(vmlinuz: &[u8]) -> Option<(&[u8], &'static str)> {
    let long = |at: usize| Some(u32::from_le_bytes(vmlinuz.get(at..at + 4)?.try_into().ok()?) as usize);
    let version = u16::from_le_bytes(vmlinuz.get(0x206..0x208)?.try_into().ok()?);
    if vmlinuz.get(0x202..0x206)? != b"HdrS" || version < 0x208 {
        return None;
    }
    let sectors = match vmlinuz[0x1f1] {
        0 => 4,
        count => usize::from(count),
    };
    let start = (sectors + 1) * 512 + long(0x248)?;
    let payload = vmlinuz.get(start..start.checked_add(long(0x24c)?)?)?;
    let (_, ending) = FORMATS.into_iter().find(|(magic, _)| payload.starts_with(magic))?;
    // Behind all but gzip, which has it already, the kernel's build writes the length in four bytes.
    let length = if ending == "gz" { payload.len() } else { payload.len().checked_sub(4)? };
    Some((&payload[..length], ending))
}

/// Whether an ELF file has the note that names the entry for PVH: owner Xen, type 18, four or eight bytes long.
fn starts_by_pvh(kernel: &[u8]) -> bool {
    let note = |length: u8| [4, 0, 0, 0, length, 0, 0, 0, 18, 0, 0, 0, b'X', b'e', b'n', 0];
    kernel.starts_with(b"\x7fELF") && kernel.windows(16).any(|bytes| bytes == note(4) || bytes == note(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A `vmlinuz` whose setup has so many sectors, with a payload behind some code.
    fn vmlinuz(sectors: u8, payload: &[u8]) -> Vec<u8> {
        let setup = (if sectors == 0 { 4 } else { usize::from(sectors) } + 1) * 512;
        let mut image = vec![0; setup + 700];
        image[0x1f1] = sectors;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&700_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(b"code behind it");
        image
    }

    fn elf(note: u8) -> Vec<u8> {
        let mut kernel = b"\x7fELF and code".repeat(100);
        kernel.extend([4, 0, 0, 0, 8, 0, 0, 0, note, 0, 0, 0, b'X', b'e', b'n', 0]);
        kernel.extend([7; 1000]);
        kernel
    }

    #[test]
    fn the_kernel_comes_out_as_it_went_in() {
        let place = tempfile::tempdir().unwrap();
        for (program, sectors) in [("xz", 39), ("gzip", 0), ("zstd", 1)] {
            let path = place.path().join(program);
            fs::write(&path, elf(18)).unwrap();
            let Ok(packed) = Command::new(program).arg("-c").arg(&path).output() else {
                gleaner_skips::skip(program, format!("{program} is not here"));
                continue;
            };
            let mut payload = packed.stdout;
            if program != "gzip" {
                payload.extend([1, 2, 3, 4]);
            }
            let image = vmlinuz(sectors, &payload);
            assert_eq!(unpacked(&image, place.path()).unwrap(), Some(elf(18)), "{program}");
            for cut in (0..image.len() - 20).step_by(97) {
                assert_eq!(unpacked(&image[..cut], place.path()).unwrap(), None, "cut at {cut}");
            }
        }
    }

    #[test]
    fn one_that_qemu_cannot_start_is_left_packed() {
        assert!(starts_by_pvh(&elf(18)));
        assert!(!starts_by_pvh(&elf(17)));
        assert!(!starts_by_pvh(&elf(18)[1..]));
    }
}
