//! From a path to the module that defines what it names.

use crate::tree::{ModuleId, Names, Tree};

/// Imports that lead to imports end somewhere; a tree that is being edited may have some that do not.
const DEPTH_MAX: usize = 32;

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Module(ModuleId),
    /// An item of this module.
    ItemOf(ModuleId),
}

impl Tree {
    /// The module that defines what `path`, written in module `from`, names; `None` for what is not of this
    /// crate.
    pub(crate) fn definer(&self, from: ModuleId, path: &[String]) -> Option<ModuleId> {
        self.follow(from, path, 0).map(|found| match found {
            Found::Module(id) | Found::ItemOf(id) => id,
        })
    }

    fn follow(&self, from: ModuleId, path: &[String], depth: usize) -> Option<Found> {
        if depth > DEPTH_MAX {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Found::Module(0),
            "self" => Found::Module(from),
            "super" => Found::Module(self.modules[from].parent?),
            name => self.name_in(from, name, path, depth)?,
        };
        for name in rest {
            let Found::Module(id) = found else { return Some(found) };
            found = match name.as_str() {
                "super" => Found::Module(self.modules[id].parent?),
                // What cannot be followed further belongs to what was found last.
                name => self.name_in(id, name, &[], depth).unwrap_or(Found::ItemOf(id)),
            };
        }
        Some(found)
    }

    /// What `name` is in the scope of a module. `path` is what is being resolved: an import does not explain
    /// itself.
    fn name_in(&self, id: ModuleId, name: &str, path: &[String], depth: usize) -> Option<Found> {
        let module = &self.modules[id];
        if let Some(child) = module.children.get(name) {
            return Some(Found::Module(*child));
        }
        if module.items.contains(name) {
            return Some(Found::ItemOf(id));
        }
        if let Some(import) = module.imports.get(name)
            && import.as_slice() != path
        {
            return self.follow(id, import, depth + 1);
        }
        let mut through_globs = module.globs.iter().filter_map(|glob| {
            let Found::Module(other) = self.follow(id, glob, depth + 1)? else { return None };
            let elsewhere = other != id;
            elsewhere.then(|| self.name_in(other, name, &[], depth + 1)).flatten()
        });
        through_globs.next()
    }

    /// All arrows of a module: to which module, and by which path.
    pub(crate) fn arrows(&self, from: ModuleId) -> Vec<(ModuleId, &Names)> {
        let paths = self.modules[from].paths.iter();
        let ends = paths.filter_map(|path| self.definer(from, path).map(|to| (to, path)));
        ends.filter(|(to, _)| *to != from).collect()
    }
}
