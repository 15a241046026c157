//! The module tree of a crate, with the names that each module defines, imports and uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// The segments of a path as written.
pub(crate) type Names = Vec<String>;

/// Index of a module in [`Tree::modules`].
pub(crate) type ModuleId = usize;

/// A module, without the items that are compiled for tests only.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Its path from the root, which is empty for the root itself.
    pub(crate) path: Names,
    pub(crate) parent: Option<ModuleId>,
    pub(crate) children: BTreeMap<String, ModuleId>,
    /// Names of the items that it defines, except modules.
    pub(crate) items: BTreeSet<String>,
    /// The paths that `use` brings into its scope, by their names in this module.
    pub(crate) imports: BTreeMap<String, Names>,
    /// The modules that it imports with a glob.
    pub(crate) globs: Vec<Names>,
    /// All paths in its code.
    pub(crate) paths: BTreeSet<Names>,
}

/// The modules of a crate. The first is the root.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// Returns the text of a file, or `None` if the file cannot be read.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Tree {
    /// Builds the tree below the root file of a crate.
    pub(crate) fn of_file(root: &Path) -> anyhow::Result<Self> {
        Self::of_sources(root, &|path| std::fs::read_to_string(path).ok())
    }

    /// Builds the tree below a root file. `read` provides the files.
    pub(crate) fn of_sources(root: &Path, read: Read<'_>) -> anyhow::Result<Self> {
        let text = read(root).with_context(|| format!("{} cannot be read", root.display()))?;
        let file = syn::parse_file(&text).with_context(|| format!("{} does not parse", root.display()))?;
        let mut tree = Self { modules: vec![Module::default()] };
        let folder = root.parent().map(Path::to_owned).unwrap_or_default();
        tree.fill(0, &file.items, &folder, read)?;
        Ok(tree)
    }

    /// Adds the items of module `id` and of its children to the tree. The files of the children are in
    /// `folder`.
    fn fill(&mut self, id: ModuleId, items: &[Item], folder: &Path, read: Read<'_>) -> anyhow::Result<()> {
        for item in items {
            if is_for_tests(attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    let child = self.add(id, &name);
                    let inside = folder.join(&name);
                    match &module.content {
                        Some((_, items)) => self.fill(child, items, &inside, read)?,
                        None => {
                            let items = parse_module(folder, &name, read)?;
                            self.fill(child, &items, &inside, read)?;
                        }
                    }
                }
                other => {
                    if let Some(name) = defined(other) {
                        self.modules[id].items.insert(name);
                    }
                    Collector { module: &mut self.modules[id] }.visit_item(other);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, parent: ModuleId, name: &str) -> ModuleId {
        let id = self.modules.len();
        let mut path = self.modules[parent].path.clone();
        path.push(name.to_owned());
        self.modules.push(Module { path, parent: Some(parent), ..Module::default() });
        self.modules[parent].children.insert(name.to_owned(), id);
        id
    }
}

fn parse_module(folder: &Path, name: &str, read: Read<'_>) -> anyhow::Result<Vec<Item>> {
    let candidates: [PathBuf; 2] = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
    for path in &candidates {
        if let Some(text) = read(path) {
            let file =
                syn::parse_file(&text).with_context(|| format!("{} does not parse", path.display()))?;
            return Ok(file.items);
        }
    }
    bail!("mod {name}: neither {} nor {} is there", candidates[0].display(), candidates[1].display())
}

/// Whether an item has `#[cfg(test)]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && condition.is_ok_and(|text| text == "test")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Collects the imports and the paths of one module.
struct Collector<'a> {
    module: &'a mut Module,
}

impl Collector<'_> {
    fn import(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: String| -> Names { before.iter().cloned().chain([name]).collect() };
        match tree {
            UseTree::Path(path) => self.import(&with(path.ident.to_string()), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(before, tree)),
            UseTree::Glob(_) => self.module.globs.push(before.to_vec()),
            UseTree::Name(name) if name.ident == "self" => {
                self.bring(before.to_vec(), before.last().cloned())
            }
            UseTree::Name(name) => self.bring(with(name.ident.to_string()), Some(name.ident.to_string())),
            UseTree::Rename(rename) => {
                let path =
                    if rename.ident == "self" { before.to_vec() } else { with(rename.ident.to_string()) };
                self.bring(path, Some(rename.rename.to_string()));
            }
        }
    }

    fn bring(&mut self, path: Names, name: Option<String>) {
        self.module.paths.insert(path.clone());
        if let Some(name) = name {
            self.module.imports.insert(name, path);
        }
    }

    /// Collects the paths in the arguments of a macro. The arguments are not parsed, so their tokens are
    /// searched.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.flush(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.flush(&mut path);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.flush(&mut path);
    }

    fn flush(&mut self, path: &mut Names) {
        if !path.is_empty() {
            self.module.paths.insert(std::mem::take(path));
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.module.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}
