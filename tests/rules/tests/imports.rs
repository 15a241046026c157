//! Checks the imports among crates and modules.
//!
//! Each top-level folder has one rule. A crate may import crates of its own folder, and crates of the
//! folders that the rule names. None of our crates is a build dependency of another. Cargo itself refuses
//! circles between crates.
//!
//! The Python wheel is a separate workspace with the dependency versions of this workspace. It imports the
//! queue, and may import the orchestrator.
//!
//! Two more rules are about modules. Only commands, runs and simulations import recipes. In `rolldock-queue`,
//! the core does not import the edges: the modules that carry rows and calls out of the process and into it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};
use syn::visit::{self, Visit};
use syn::{Item, ItemUse, UseTree};

const LEAVES: [&str; 4] = ["loadbalancer", "queue", "reward", "simengine"];
/// The crate of the HTTP listener. Crates of all folders may import it, and it imports none of our crates.
const LISTENER: &str = "listener";

/// Maps each top-level folder that has crates to the other folders whose crates it may import.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    let below: Vec<&str> = LEAVES.into_iter().chain([LISTENER]).collect();
    let all: Vec<&str> = below.iter().copied().chain(["orchestrator"]).collect();
    let mut rules: BTreeMap<&str, Vec<&str>> =
        LEAVES.into_iter().map(|leaf| (leaf, vec![LISTENER])).collect();
    rules.insert(LISTENER, Vec::new());
    rules.insert("orchestrator", below);
    rules.insert("tests", all.iter().copied().chain(["bench"]).collect());
    rules.insert("bench", all);
    rules
}

/// The crates of the workspace.
fn packages() -> Vec<Package> {
    let metadata = MetadataCommand::new()
        .manifest_path(rolldock_tests::workspace_root().join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec();
    metadata.unwrap().packages
}

/// The top-level folder of a crate.
fn folder(package: &Package) -> &str {
    let root = rolldock_tests::workspace_root().canonicalize().unwrap();
    let path = package.manifest_path.as_std_path().strip_prefix(root).unwrap();
    path.components().next().unwrap().as_os_str().to_str().unwrap()
}

#[test]
fn crates_import_only_what_the_architecture_allows() {
    let packages = packages();
    let rules = allowed();
    let folders: BTreeMap<&str, &str> =
        packages.iter().map(|package| (package.name.as_str(), folder(package))).collect();
    let with_crates: BTreeSet<&str> = folders.values().copied().collect();
    for ruled in rules.keys() {
        assert!(with_crates.contains(ruled), "{ruled}/ has no crate any more; remove its rule");
    }
    for package in &packages {
        let (name, from) = (package.name.as_str(), folder(package));
        let rule = rules
            .get(from)
            .unwrap_or_else(|| panic!("{from}/ is new; add a rule that says what it may import"));
        for dependency in &package.dependencies {
            let imported = dependency.name.as_str();
            let Some(to) = folders.get(imported) else { continue };
            assert!(
                *to == from || rule.contains(to),
                "{name} imports {imported} ({:?}), and {from}/ may not import {to}/",
                dependency.kind
            );
            assert_ne!(
                dependency.kind,
                DependencyKind::Build,
                "{name} has {imported} as a build dependency; expected none of our crates there"
            );
        }
    }
}

/// The crate of recipes.
const RECIPES: &str = "rolldock-recipe";
/// The files of `rolldock` that may import recipes: its root, which re-exports them, and three modules.
const ABOVE_RECIPES: [&str; 4] = ["cli", "lib.rs", "run", "simulate"];

/// The folder of the Python wheel, which is a workspace of its own, and the folders whose crates it may
/// import.
const WHEEL: &str = "python";
const BELOW_WHEEL: [&str; 2] = ["queue", "orchestrator"];

#[test]
fn the_wheel_imports_the_queue() {
    let root = rolldock_tests::workspace_root().canonicalize().unwrap();
    let metadata = MetadataCommand::new()
        .manifest_path(root.join(WHEEL).join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .unwrap();
    let [wheel] = metadata.packages.as_slice() else { panic!("expected one crate in {WHEEL}/") };
    let of_ours = wheel.dependencies.iter().filter_map(|dependency| dependency.path.as_ref());
    let mut imported = BTreeSet::new();
    for path in of_ours {
        let inside = path.as_std_path().canonicalize().unwrap();
        let first = inside.strip_prefix(&root).unwrap().components().next().unwrap();
        imported.insert(first.as_os_str().to_str().unwrap().to_owned());
    }
    assert!(imported.contains("queue"), "{imported:?}");
    for folder in imported {
        assert!(BELOW_WHEEL.contains(&folder.as_str()), "{WHEEL}/ may not import {folder}/");
    }
}

/// The packages of a lock file, with their versions.
fn locked(text: &str) -> BTreeSet<(String, String)> {
    let value = |line: &str, key: &str| {
        let value = line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"')?;
        Some(value.to_owned())
    };
    let lines: Vec<&str> = text.lines().collect();
    let pairs = lines.windows(2);
    pairs.filter_map(|pair| Some((value(pair[0], "name")?, value(pair[1], "version")?))).collect()
}

#[test]
fn the_wheel_has_the_versions_of_the_workspace() {
    let root = rolldock_tests::workspace_root();
    let read = |path: PathBuf| locked(&std::fs::read_to_string(path).unwrap());
    let (own, all) = (read(root.join(WHEEL).join("Cargo.lock")), read(root.join("Cargo.lock")));
    let names: BTreeSet<&String> = all.iter().map(|(name, _)| name).collect();
    let shared: Vec<_> = own.iter().filter(|(name, _)| names.contains(name)).collect();
    assert!(shared.len() > 100, "only {} packages are in both lock files", shared.len());
    let differing: Vec<_> = shared.into_iter().filter(|package| !all.contains(package)).collect();
    assert!(
        differing.is_empty(),
        "{differing:?} differ: copy Cargo.lock to {WHEEL}/ and run `cargo metadata` there, which keeps \
         its versions"
    );
}

#[test]
fn only_commands_and_runs_import_the_crate_of_recipes() {
    let imports =
        |package: &Package| package.dependencies.iter().any(|dependency| dependency.name == RECIPES);
    let importers: Vec<Package> = packages().into_iter().filter(imports).collect();
    let names: Vec<&str> = importers.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(names, ["rolldock", "rolldock-cli"], "these crates import recipes");
}

#[test]
fn only_cli_and_run_import_recipes() {
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
                let imports = ["crate::recipe", "rolldock_recipe"].iter().any(|path| text.contains(path));
                assert!(!imports, "{} imports recipes; only cli and run may", inside.display());
            }
        }
    }
}

/// The module of `rolldock-queue` through which rows and calls leave the process: HTTP, shared memory,
/// snapshots, exports and others. All other modules are the core.
const EDGES: &str = "edges";

/// Appends to `paths` the paths that an import names.
fn paths_of(tree: &UseTree, before: &[String], paths: &mut Vec<Vec<String>>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => paths_of(&path.tree, &with(&path.ident), paths),
        UseTree::Name(name) => paths.push(with(&name.ident)),
        UseTree::Rename(rename) => paths.push(with(&rename.ident)),
        UseTree::Glob(_) => paths.push(before.to_vec()),
        UseTree::Group(group) => group.items.iter().for_each(|item| paths_of(item, before, paths)),
    }
}

/// Collects the paths in a file that lead to the edges, through their module or through a name that the root
/// of the crate re-exports from it.
struct OfEdges<'a> {
    at_the_root: &'a BTreeSet<String>,
    found: Vec<String>,
}

impl OfEdges<'_> {
    fn look(&mut self, path: &[String]) {
        let inside = path.iter().skip_while(|part| ["crate", "super"].contains(&part.as_str()));
        let first = inside.clone().next().filter(|_| inside.count() < path.len());
        if first.is_some_and(|first| first == EDGES || self.at_the_root.contains(first)) {
            self.found.push(path.join("::"));
        }
    }
}

impl<'ast> Visit<'ast> for OfEdges<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut paths = Vec::new();
        paths_of(&item.tree, &[], &mut paths);
        paths.iter().for_each(|path| self.look(path));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.look(&parts);
        visit::visit_path(self, path);
    }
}

/// The names that the root of a crate re-exports from its edges.
fn offered_from_edges(root: &syn::File) -> BTreeSet<String> {
    let mut paths = Vec::new();
    for item in &root.items {
        if let Item::Use(item) = item {
            paths_of(&item.tree, &[], &mut paths);
        }
    }
    let of_edges = paths.into_iter().filter(|path| path.first().is_some_and(|first| first == EDGES));
    of_edges.filter_map(|mut path| path.pop()).collect()
}

fn says_of_edges(text: &str, at_the_root: &BTreeSet<String>) -> Vec<String> {
    let mut looking = OfEdges { at_the_root, found: Vec::new() };
    looking.visit_file(&syn::parse_file(text).unwrap());
    looking.found
}

/// Appends the source files below `folder` to `found`, without those below `except`.
fn sources(folder: &Path, except: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path != except {
            sources(&path, except, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_queue_core_does_not_import_edges() {
    let source = rolldock_tests::workspace_root().join("queue").join("src");
    let root = source.join("lib.rs");
    let at_the_root = offered_from_edges(&syn::parse_file(&std::fs::read_to_string(&root).unwrap()).unwrap());
    assert!(at_the_root.contains("RemoteQueue"), "{at_the_root:?}");
    let mut core = Vec::new();
    sources(&source, &source.join(EDGES), &mut core);
    assert!(core.len() > 50, "only {} files were read", core.len());
    for path in core.into_iter().filter(|path| *path != root) {
        let found = says_of_edges(&std::fs::read_to_string(&path).unwrap(), &at_the_root);
        assert!(found.is_empty(), "{} is in the core and imports {}", path.display(), found.join(", "));
    }
}

#[test]
fn imports_of_edges_are_found() {
    let root = syn::parse_file("mod edges; pub use edges::{Client, room}; pub use lease::Lease;").unwrap();
    let at_the_root = offered_from_edges(&root);
    let found = |text: &str| says_of_edges(text, &at_the_root);
    assert_eq!(found("use crate::edges::wire::Body;"), ["crate::edges::wire::Body"]);
    assert_eq!(found("use crate::{Client, Lease};"), ["crate::Client"]);
    assert_eq!(found("fn f() { super::super::edges::go(); }"), ["super::super::edges::go"]);
    assert_eq!(found("fn f(room: crate::room::Key) {}"), ["crate::room::Key"]);
    assert_eq!(found("use crate::{Lease, put::Put}; use std::edges; fn room() { room(); }"), [""; 0]);
}
