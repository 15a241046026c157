//! Checks that every task has a name.
//!
//! In the sources of the orchestrator, the leaf crates and the Python wheel, every call of `spawn` and its
//! variants must pass a name, as `Scope::spawn` and the `tasks` modules of the leaf crates require. A file
//! may be exempt if it is listed here with the reason. The rule does not apply to processes (a `spawn`
//! without arguments) or to threads whose builder was given a name.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprCall, ExprLit, ExprMethodCall, ItemMod, Lit, Token};

const SPAWNS: [&str; 6] =
    ["spawn", "spawn_blocking", "spawn_blocking_on", "spawn_detached", "spawn_local", "spawn_on"];

/// The files that may start tasks without a name: the end of the path, and the reason.
const WITHOUT_NAME: &[(&str, &str)] = &[
    ("scope/src/lib.rs", "the place of the orchestrator that spawns"),
    ("tasks.rs", "the place of a leaf or of the wheel that spawns"),
    ("loadbalancer/src/proxy/mod.rs", "connections of one listener, which its future owns, on their thread"),
    ("process/src/awake.rs", "the one task of a runtime, which ends with it"),
    ("listener/src/serve.rs", "connections of one listener, which its future owns"),
    ("local/server.rs", "connections of one listener, which its future owns, on their thread"),
    ("queue/src/mapped.rs", "scoped threads, which end inside the call"),
];

#[derive(Default)]
struct Spawns {
    /// The names of the functions that were called without a task name.
    unnamed: Vec<String>,
}

fn gives_name(arguments: &Punctuated<Expr, Token![,]>) -> bool {
    arguments.iter().any(|argument| matches!(argument, Expr::Lit(ExprLit { lit: Lit::Str(_), .. })))
}

/// Whether a chain of method calls contains a call of `name`.
fn is_named_builder(receiver: &Expr) -> bool {
    match receiver {
        Expr::MethodCall(call) => call.method == "name" || is_named_builder(&call.receiver),
        _ => false,
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

impl<'ast> Visit<'ast> for Spawns {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        let is_spawn = SPAWNS.contains(&name.as_str()) && !call.args.is_empty();
        if is_spawn && !gives_name(&call.args) && !is_named_builder(&call.receiver) {
            self.unnamed.push(name);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(last) = function.path.segments.last()
            && SPAWNS.contains(&last.ident.to_string().as_str())
            && !gives_name(&call.args)
        {
            self.unnamed.push(last.ident.to_string());
        }
        visit::visit_expr_call(self, call);
    }
}

fn unnamed(text: &str) -> Vec<String> {
    let mut spawns = Spawns::default();
    spawns.visit_file(&syn::parse_file(text).unwrap());
    spawns.unnamed
}

/// Appends the source files below `folder` to `found`, without tests, examples and build outputs.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !["tests", "target", "examples"].contains(&name) {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && !["tests.rs", "test_server.rs"].contains(&name) {
            found.push(path);
        }
    }
}

#[test]
fn every_task_has_a_name() {
    let mut found = Vec::new();
    for folder in ["orchestrator", "listener", "loadbalancer", "python", "queue", "reward", "simengine"] {
        sources(&rolldock_tests::workspace_root().join(folder), &mut found);
    }
    assert!(found.len() > 200, "only {} files were read", found.len());
    let mut wrong = String::new();
    for path in found {
        let is_listed = WITHOUT_NAME.iter().any(|(end, _)| path.ends_with(end));
        let calls = unnamed(&std::fs::read_to_string(&path).unwrap());
        if !is_listed && !calls.is_empty() {
            wrong.push_str(&format!("{}: {}\n", path.display(), calls.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "tasks without a name:\n{wrong}");
}

#[test]
fn calls_without_a_name_are_found() {
    assert_eq!(unnamed("fn f() { tracker.spawn(async {}); }"), ["spawn"]);
    assert_eq!(unnamed("fn f() { tokio::task::spawn_blocking(|| {}); }"), ["spawn_blocking"]);
    assert_eq!(unnamed("fn f() { std::thread::spawn(|| {}); }"), ["spawn"]);
    assert_eq!(unnamed("fn f() { a.b(scope.spawn_on(task, &runtime)); }"), ["spawn_on"]);
    let named = "fn f() { scope.spawn(\"name\", async {}); tasks::spawn(&tracker, \"name\", async {}); }";
    assert_eq!(unnamed(named), Vec::<String>::new());
    let others = "fn f() { command.spawn(); Builder::new().name(n).spawn(|| {}); }";
    assert_eq!(unnamed(others), Vec::<String>::new());
}
