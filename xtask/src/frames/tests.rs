//! Tests of the analysis on functions of a few bytes.

use super::graph::Graph;
use super::image::Image;

/// `push rbx; sub rsp, 32; call; add rsp, 32; pop rbx; ret`, with the call at byte 6.
const CALLER: &[u8] = &[0x53, 0x48, 0x83, 0xec, 0x20, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 0x20, 0x5b, 0xc3];
/// `sub rsp, 64; add rsp, 64; ret`
const LEAF: &[u8] = &[0x48, 0x83, 0xec, 0x40, 0x48, 0x83, 0xc4, 0x40, 0xc3];
/// `sub rsp, 24; ud2`
const PANIC: &[u8] = &[0x48, 0x83, 0xec, 0x18, 0x0f, 0x0b];

/// What the first function takes, and its deepest path. The other arguments are those of `Image::of_code`.
fn deepest(
    functions: &[(&str, &[u8])],
    methods: &[usize],
    names: &[(usize, u64, usize)],
) -> Result<(u64, Vec<String>), String> {
    let image = Image::of_code(functions, methods, names);
    let (bytes, path) = Graph::new(&image).deepest(0, None)?;
    Ok((bytes, path.iter().map(|step| image.functions[step.function].name.clone()).collect()))
}

#[test]
fn frames_and_return_addresses_add_up() {
    let hook = "<no_std_proof::host::Host as portcullis::platform::Platform>::cpu";
    let with = "<no_std_proof::host::TryLock<u8> as portcullis::platform::Lock<u8>>::with::<(), closure>";
    // `push rbx; call`, followed by the code of another function.
    let ends: &[u8] = &[0x53, 0xe8, 0, 0, 0, 0, 0x58, 0x58, 0xc3];
    let touches_each_page: &[u8] = &[
        0x4c, 0x8d, 0x9c, 0x24, 0x00, 0xd0, 0xff, 0xff, // lea r11, [rsp - 0x3000]
        0x48, 0x81, 0xec, 0x00, 0x10, 0x00, 0x00, // sub rsp, 0x1000
        0x48, 0xc7, 0x04, 0x24, 0x00, 0x00, 0x00, 0x00, // mov qword ptr [rsp], 0
        0x4c, 0x39, 0xdc, // cmp rsp, r11
        0x75, 0xec, // jne, to the second
        0x48, 0x81, 0xc4, 0x00, 0x30, 0x00, 0x00, // add rsp, 0x3000
        0xc3,
    ];
    for (code, call, callee, bytes, path) in [
        (CALLER, Some(6), ("leaf", LEAF), 8 + 8 + 32 + 8 + 64, &["caller", "leaf"][..]),
        // A hook of the host costs its return address, unless it runs the library.
        (CALLER, Some(6), (hook, LEAF), 8 + 8 + 32 + 8, &["caller"]),
        (CALLER, Some(6), (with, LEAF), 120, &["caller", with]),
        // Nothing follows a call that does not return.
        (ends, Some(2), ("panic", PANIC), 8 + 8 + 8 + 24, &["caller", "panic"]),
        (touches_each_page, None, ("leaf", LEAF), 8 + 0x3000, &["caller"]),
    ] {
        let calls: Vec<_> = call.map(|at| (0, at, 1)).into_iter().collect();
        let (found, on_it) = deepest(&[("caller", code), callee], &[], &calls).expect("known");
        assert_eq!((found, on_it), (bytes, path.iter().map(ToString::to_string).collect()));
    }
}

#[test]
fn what_cannot_be_told_is_an_error_with_a_name() {
    // `sub rsp, 8; call rax; add rsp, 8; ret`
    let indirect: &[u8] = &[0x48, 0x83, 0xec, 0x08, 0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08, 0xc3];
    // `test al, al; je over the push; push rbx; ret`
    let uneven: &[u8] = &[0x84, 0xc0, 0x74, 0x01, 0x53, 0xc3];
    for (name, code, calls, what) in [
        ("endless", CALLER, &[(0, 6, 0)][..], "recursion"),
        ("jumpy", indirect, &[], "indirect"),
        ("uneven", uneven, &[], "differs"),
    ] {
        let error = deepest(&[(name, code)], &[], calls).expect_err(name);
        assert!(error.contains(what) && error.contains(name), "{error}");
    }
}

#[test]
fn a_call_by_a_table_that_a_call_returned_leads_to_that_table_and_no_other() {
    // `sub rsp, 8; lea rcx, other; call; call [rax + 24]; add rsp, 8; ret`
    let of_the_returned: &[u8] = &[
        0x48, 0x83, 0xec, 0x08, 0x48, 0x8d, 0x0d, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0xff, 0x50, 0x18, 0x48, 0x83, 0xc4,
        0x08, 0xc3,
    ];
    // As above, but with `mov rax, [rbx]` before the second call, which may then use any vtable.
    let of_any: &[u8] = &[
        0x48, 0x83, 0xec, 0x08, 0x48, 0x8d, 0x0d, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x03, 0xff, 0x50, 0x18,
        0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];
    // `lea rax, small; ret`
    let table: &[u8] = &[0x48, 0x8d, 0x05, 0, 0, 0, 0, 0xc3];
    let small: &[u8] = &[0x50, 0x58, 0xc3];
    let (small_name, large_name) = ("<small as portcullis::Method>::call", "<large as portcullis::Method>::call");
    // The vtable of the small function is the fifth section; the other vtable is the sixth.
    let names = [(0, 7, 5), (0, 12, 1), (1, 3, 4)];
    let below = |caller| {
        let functions = [("caller", caller), ("table", table), (small_name, small), (large_name, LEAF)];
        deepest(&functions, &[2, 3], &names).expect("known")
    };
    assert_eq!(below(of_the_returned), (8 + 8 + 8 + 8, vec!["caller".to_owned(), small_name.to_owned()]));
    assert_eq!(below(of_any), (8 + 8 + 8 + 64, vec!["caller".to_owned(), large_name.to_owned()]));
}
