//! Resolves a path to the module that defines the named item.

use crate::tree::{ModuleId, Names, Tree};

/// The longest chain of imports that is followed. A tree that is being edited may have an endless chain.
const DEPTH_MAX: usize = 32;

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Module(ModuleId),
    /// An item of this module.
    ItemOf(ModuleId),
}

impl Tree {
    /// Returns the module that defines the item that `path` names when it is written in module `from`.
    /// Returns `None` if the item is not part of this crate.
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
                // A name that cannot be resolved counts as an item of the last module that was found.
                name => self.name_in(id, name, &[], depth).unwrap_or(Found::ItemOf(id)),
            };
        }
        Some(found)
    }

    /// Resolves `name` in the scope of a module. `path` is the path that is being resolved. An import of
    /// exactly this path is ignored, because it would lead back to itself.
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

    /// Returns the arrows that begin at a module, each as the target module and the path that leads to it.
    pub(crate) fn arrows(&self, from: ModuleId) -> Vec<(ModuleId, &Names)> {
        let paths = self.modules[from].paths.iter();
        let ends = paths.filter_map(|path| self.definer(from, path).map(|to| (to, path)));
        ends.filter(|(to, _)| *to != from).collect()
    }
}
