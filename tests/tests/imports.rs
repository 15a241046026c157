//! Who may import whom.

use std::collections::BTreeMap;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Ours, and what of ours each may use outside its tests.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    let leaves = vec!["rolldock-loadbalancer", "rolldock-queue", "rolldock-reward", "rolldock-simengine"];
    let all: Vec<&str> = leaves.iter().copied().chain(["rolldock"]).collect();
    let mut rules: BTreeMap<&str, Vec<&str>> = leaves.iter().map(|leaf| (*leaf, Vec::new())).collect();
    rules.insert("rolldock", leaves);
    rules.insert("rolldock-tests", all.clone());
    rules.insert("rolldock-bench", all);
    rules
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
    let ours: Vec<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    for name in rules.keys() {
        assert!(ours.contains(name), "{name} has gone; change the rules with it");
    }
    for package in &metadata.packages {
        let name = package.name.as_str();
        let rule = rules.get(name).unwrap_or_else(|| panic!("{name} is new: say here what it may import"));
        for dependency in &package.dependencies {
            let imported = dependency.name.as_str();
            if !ours.contains(&imported) {
                continue;
            }
            assert!(
                rule.contains(&imported),
                "{name} imports {imported} ({:?}), which the architecture forbids",
                dependency.kind
            );
            assert_ne!(dependency.kind, DependencyKind::Build, "{name} builds with {imported}");
        }
    }
}
