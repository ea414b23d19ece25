use super::*;

fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| RepoFile {
            path: (*path).to_owned(),
            bytes: text.len(),
            text: Some((*text).to_owned()),
        })
        .collect();
    let all = arrows_by_crate(&files, &mut Findings::default());
    all.iter().flat_map(|(_, arrows)| circles(arrows)).collect()
}

#[test]
fn circles_through_re_exports_are_found() {
    let files = [
        ("crates/x/src/lib.rs", "mod a; mod b; pub use b::B;"),
        ("crates/x/src/a.rs", "use crate::B; pub struct A(B);"),
        ("crates/x/src/b/mod.rs", "mod c; pub use self::c::B;"),
        ("crates/x/src/b/c.rs", "pub struct B; fn f() { crate::a::f::<u8>() }"),
    ];
    assert_eq!(found(&files), [["crates/x/src/a.rs", "crates/x/src/b/c.rs"]]);
}

#[test]
fn tests_and_layers_are_no_circles() {
    let files = [
        ("crates/x/src/lib.rs", "mod a; mod b;"),
        ("crates/x/src/a.rs", "use super::b::B; #[cfg(test)] mod tests { use super::*; }"),
        ("crates/x/src/b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
        ("crates/x/src/b/tests.rs", "use crate::a::A;"),
    ];
    assert_eq!(found(&files), Vec::<Vec<String>>::new());
}

#[test]
fn circles_through_methods_of_self_are_found() {
    let files = [
        ("crates/x/src/lib.rs", "mod a; mod b;"),
        (
            "crates/x/src/a.rs",
            "pub struct A; impl A { pub fn one(&self) { self.two() } fn four(&self) {} }",
        ),
        ("crates/x/src/b.rs", "use crate::a::A; impl A { pub fn two(&self) {} }"),
    ];
    assert_eq!(found(&files), [["crates/x/src/a.rs", "crates/x/src/b.rs"]]);
    // A method of the same name of another type is no arrow.
    let other = (
        "crates/x/src/b.rs",
        "use crate::a::A; pub struct B; impl B { pub fn two(&self, _: A) {} }",
    );
    assert_eq!(found(&[files[0], files[1], other]), Vec::<Vec<String>>::new());
}

#[test]
fn circles_through_names_of_re_exports_and_macros_are_found() {
    let lib = ("crates/x/src/lib.rs", "mod a; mod b;");
    let b = ("crates/x/src/b.rs", "use crate::a::A; pub struct B(A);");
    for a in [
        "pub use crate::b::B; pub struct A; fn f(b: B) {}",
        "use crate::b; pub struct A; fn f() { select!(_ = b::g() => 1) }",
        "pub struct A; table! { one => crate::b::B, }",
    ] {
        let files = [lib, ("crates/x/src/a.rs", a), b];
        assert_eq!(found(&files), [["crates/x/src/a.rs", "crates/x/src/b.rs"]], "{a}");
    }
    // A name that is only passed on is a line in a table of contents.
    let a = ("crates/x/src/a.rs", "pub use crate::b::B; pub struct A;");
    assert_eq!(found(&[lib, a, b]), Vec::<Vec<String>>::new());
}
