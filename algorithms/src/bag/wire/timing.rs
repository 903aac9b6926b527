use super::super::*;
use super::*;
use std::hint::black_box;
use std::time::Instant;
fn hash(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95);
    bits = (bits ^ (bits >> 32)).wrapping_mul(0x5851_f42d_4c95_7f2d);
    bits ^ (bits >> 29)
}
fn time<T>(name: &str, n: usize, mut f: impl FnMut() -> T) {
    let mut t = Vec::new();
    for _ in 0..400 {
        let s = Instant::now();
        black_box(f());
        t.push(s.elapsed().as_secs_f64());
    }
    t.sort_by(f64::total_cmp);
    println!("{name:20} median {:.3} ns  p10 {:.3} ns", t[200] / n as f64 * 1e9, t[40] / n as f64 * 1e9);
}
#[test]
fn timing() {
    let len = 14_728_266u32 / 6;
    let entries: Entries = (0..len)
        .filter(|&i| hash(i.into()) % 100 == 0)
        .map(|i| (i, hash(i as u64 + 77) as u32 as f32 + 1.0))
        .collect();
    let n = entries.len();
    let choice = indices::choose(&entries.indices, len.into());
    println!("{choice:?} {n}");
    let mut out = Vec::with_capacity(1 << 20);
    time("choose", n, || indices::choose(black_box(&entries.indices), len.into()));
    time("write", n, || {
        out.clear();
        indices::write(choice, black_box(&entries.indices), &mut out);
        out.len()
    });
    time("write values", n, || {
        out.clear();
        values::write_sparse(Rounded::EXACT, &entries.indices, black_box(&entries.values), &mut out);
        out.len()
    });
    let body = Body::Sparse { entries: entries.clone(), len: len as usize, rounded: Rounded::EXACT };
    time("encode", n, || encode(black_box(std::slice::from_ref(&body))));
    out.clear();
    indices::write(choice, &entries.indices, &mut out);
    time("read", n, || indices::read(choice.form, choice.parameter, n, len, black_box(&out)).unwrap().0);
    let mut vals = Vec::new();
    values::write_sparse(Rounded::EXACT, &entries.indices, &entries.values, &mut vals);
    time("read values", n, || {
        values::read_sparse::<f32>(Rounded::EXACT, &entries.indices, black_box(&vals)).unwrap()
    });
    let payloads = encode(std::slice::from_ref(&body));
    time("decode", n, || {
        let mut d = Decoder::<f32>::new(vec![Expected { len, bound: n as u32 }]);
        let mut r = None;
        for p in &payloads {
            d.feed(p.clone(), |_, p| r = Some(p)).unwrap();
        }
        r
    });
    indices::timing(&entries.indices, choice, &out, time2);
}
fn time2(name: &str, n: usize, f: &mut dyn FnMut()) {
    time(name, n, f)
}
