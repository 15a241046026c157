//! Checks that no sibling modules import each other in circles, because such modules cannot be read, tested
//! or moved one at a time.
//!
//! For each crate of the workspace the test builds the module tree. It resolves every path in a module to
//! the module that defines the named item, and draws an arrow from the first module to the second. Siblings
//! that reach each other in both directions are a circle, at any level of the tree. Arrows between a parent
//! and its children do not count.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod cycles;
mod resolve;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::MetadataCommand;

use cycles::{Circle, circles};
use tree::Tree;

/// The known circles, each as the crate and the path of the parent. ARCHITECTURE.md must give the reason for
/// each entry.
const KNOWN: &[(&str, &str)] = &[];

fn describe(crate_name: &str, circle: &Circle) -> String {
    let mut arrows: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (from, to, path) in &circle.arrows {
        arrows.entry((from, to)).or_default().insert(path.rsplit("::").next().unwrap_or(path));
    }
    let mut text = format!("{crate_name}: in `{}`: {}\n", circle.parent, circle.members.join(", "));
    for ((from, to), names) in arrows {
        let names: Vec<&str> = names.into_iter().collect();
        text.push_str(&format!("    {from} -> {to}: {}\n", names.join(", ")));
    }
    text
}

#[test]
fn no_siblings_import_each_other_in_circles() {
    let metadata = MetadataCommand::new()
        .manifest_path(rolldock_tests::workspace_root().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .unwrap();
    let (mut modules, mut unknown) = (0, String::new());
    for package in &metadata.packages {
        let roots = package.targets.iter().filter(|target| target.is_lib() || target.is_bin());
        for root in roots {
            let tree = Tree::of_file(Path::new(root.src_path.as_str())).unwrap();
            modules += tree.modules.len();
            for circle in circles(&tree) {
                let place = (root.name.as_str(), circle.parent.as_str());
                if !KNOWN.contains(&place) {
                    unknown.push_str(&describe(&root.name, &circle));
                }
            }
        }
    }
    assert!(modules > 100, "only {modules} modules were read");
    assert!(unknown.is_empty(), "circles of imports:\n{unknown}");
}

/// Builds a tree from pairs of file name and content.
fn tree_of(sources: &[(&str, &str)]) -> Tree {
    let sources: BTreeMap<&str, &str> = sources.iter().copied().collect();
    Tree::of_sources(Path::new("src/lib.rs"), &|path| {
        sources.get(path.to_str().unwrap()).map(|text| (*text).to_owned())
    })
    .unwrap()
}

fn members(sources: &[(&str, &str)]) -> Vec<String> {
    circles(&tree_of(sources)).iter().map(|circle| circle.members.join(" ")).collect()
}

#[test]
fn a_circle_by_use_is_found() {
    let found = members(&[
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "use crate::b::B; pub struct A(B);"),
        ("src/b.rs", "pub struct B; fn f(_: &crate::a::A) {}"),
        ("src/c.rs", "use crate::{a::A, b::B}; fn f(_: A, _: B) {}"),
    ]);
    assert_eq!(found, ["a b"]);
}

#[test]
fn a_circle_through_a_name_that_the_root_hands_on_is_found() {
    let found = members(&[
        ("src/lib.rs", "mod a; mod b; pub use a::A; pub use b::*;"),
        ("src/a.rs", "use crate::B; pub struct A(B);"),
        ("src/b.rs", "pub struct B; impl B { fn f(_: super::A) {} }"),
    ]);
    assert_eq!(found, ["a b"]);
}

#[test]
fn a_circle_inside_a_macro_call_and_by_a_glob_is_found() {
    let found = members(&[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "pub struct A; fn f() { println!(\"{}\", super::b::g()); }"),
        ("src/b.rs", "use super::a::*; pub fn g() -> u8 { let _ = A; 0 }"),
    ]);
    assert_eq!(found, ["a b"]);
}

#[test]
fn a_circle_between_grandchildren_is_one_of_their_parents() {
    let found = members(&[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "pub mod deep { pub struct D; fn f(_: crate::b::B) {} }"),
        ("src/b.rs", "pub struct B; mod low;"),
        ("src/b/low.rs", "use crate::a::deep; fn f(_: deep::D) {}"),
    ]);
    assert_eq!(found, ["a b"]);
}

#[test]
fn parents_and_children_tests_and_trees_are_no_circles() {
    let found = members(&[
        ("src/lib.rs", "mod a; mod b; pub struct Root; pub use b::B;"),
        ("src/a.rs", "mod child; use child::Child; pub struct A(Child); fn f(_: crate::Root) {}"),
        ("src/a/child.rs", "use super::A; use crate::b::B; pub struct Child; fn f(_: A, _: B) {}"),
        ("src/b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
    ]);
    assert_eq!(found, Vec::<String>::new());
}
