//! Which crates may import which.
//!
//! The rule is one per top-level folder: a crate imports crates of its own folder, and of the folders that
//! its folder may import. Cargo itself refuses circles between crates.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

const LEAVES: [&str; 4] = ["loadbalancer", "queue", "reward", "simengine"];

/// Our top-level folders with crates, and the other folders whose crates each may use.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    let all: Vec<&str> = LEAVES.into_iter().chain(["orchestrator"]).collect();
    let mut rules: BTreeMap<&str, Vec<&str>> = LEAVES.into_iter().map(|leaf| (leaf, Vec::new())).collect();
    rules.insert("orchestrator", LEAVES.to_vec());
    rules.insert("tests", all.clone());
    rules.insert("bench", all);
    rules
}

/// The top-level folder that a crate lies in.
fn folder(package: &Package) -> &str {
    let root = rolldock_tests::workspace_root().canonicalize().unwrap();
    let path = package.manifest_path.as_std_path().strip_prefix(root).unwrap();
    path.components().next().unwrap().as_os_str().to_str().unwrap()
}

#[test]
fn crates_import_only_what_the_architecture_allows() {
    let metadata = MetadataCommand::new()
        .manifest_path(rolldock_tests::workspace_root().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .unwrap();
    let rules = allowed();
    let folders: BTreeMap<&str, &str> =
        metadata.packages.iter().map(|package| (package.name.as_str(), folder(package))).collect();
    let with_crates: BTreeSet<&str> = folders.values().copied().collect();
    for ruled in rules.keys() {
        assert!(with_crates.contains(ruled), "{ruled}/ has no crate any more; change the rules with it");
    }
    for package in &metadata.packages {
        let (name, from) = (package.name.as_str(), folder(package));
        let rule = rules.get(from).unwrap_or_else(|| panic!("{from}/ is new: say here what it may import"));
        for dependency in &package.dependencies {
            let imported = dependency.name.as_str();
            let Some(to) = folders.get(imported) else { continue };
            assert!(
                *to == from || rule.contains(to),
                "{name} imports {imported} ({:?}), and {from}/ may not import {to}/",
                dependency.kind
            );
            assert_ne!(dependency.kind, DependencyKind::Build, "{name} builds with {imported}");
        }
    }
}

/// The modules of `rolldock` that recipes are put together and run by. All others are made of no recipe.
const ABOVE_RECIPES: [&str; 3] = ["cli", "recipe", "run"];

#[test]
fn what_lies_below_a_run_knows_no_recipe() {
    let source = rolldock_tests::workspace_root().join("orchestrator").join("src");
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(&source).unwrap();
            let first = inside.components().next().unwrap().as_os_str();
            if ABOVE_RECIPES.iter().any(|above| first == *above) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains("crate::recipe"), "{} imports `recipe`", inside.display());
            }
        }
    }
}
