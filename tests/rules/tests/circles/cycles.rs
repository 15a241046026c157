//! Finds sibling modules that import each other in circles.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::Tree;

/// A set of sibling modules in which each module reaches all others by imports.
#[derive(Debug)]
pub(crate) struct Circle {
    /// The path of their parent; empty for the root.
    pub(crate) parent: String,
    pub(crate) members: Vec<String>,
    /// Each path of one member that leads into another: the naming module, the named module, the path.
    pub(crate) arrows: Vec<(String, String, String)>,
}

/// The arrows between the children of one parent: from, to, and the paths as in `Circle::arrows`.
type Arrows = BTreeMap<String, BTreeMap<String, Vec<(String, String, String)>>>;

/// Returns all circles of a tree, ordered by their parents.
pub(crate) fn circles(tree: &Tree) -> Vec<Circle> {
    let mut levels: BTreeMap<String, Arrows> = BTreeMap::new();
    for (from, module) in tree.modules.iter().enumerate() {
        for (to, path) in tree.arrows(from) {
            let target = &tree.modules[to].path;
            let shared = module.path.iter().zip(target).take_while(|(here, there)| here == there).count();
            let (Some(here), Some(there)) = (module.path.get(shared), target.get(shared)) else { continue };
            let level = levels.entry(module.path[..shared].join("::")).or_default();
            let arrow = level.entry(here.clone()).or_default().entry(there.clone()).or_default();
            arrow.push((module.path.join("::"), target.join("::"), path.join("::")));
        }
    }
    levels.iter().flat_map(|(parent, arrows)| circles_of(parent, arrows)).collect()
}

fn circles_of(parent: &str, arrows: &Arrows) -> Vec<Circle> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|from| (from.as_str(), reachable(arrows, from))).collect();
    let mutual = |one: &str, other: &str| {
        reach.get(one).is_some_and(|ends| ends.contains(other))
            && reach.get(other).is_some_and(|ends| ends.contains(one))
    };
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    for from in reach.keys() {
        let members: Vec<&str> = reach.keys().copied().filter(|to| from != to && mutual(from, to)).collect();
        if members.is_empty() || !seen.insert(*from) {
            continue;
        }
        seen.extend(&members);
        let all: BTreeSet<&str> = members.into_iter().chain([*from]).collect();
        let inside = arrows.iter().filter(|(from, _)| all.contains(from.as_str()));
        let made_of = inside.flat_map(|(_, to)| to.iter()).filter(|(to, _)| all.contains(to.as_str()));
        found.push(Circle {
            parent: parent.to_owned(),
            members: all.iter().map(|name| (*name).to_owned()).collect(),
            arrows: made_of.flat_map(|(_, made_of)| made_of.clone()).collect(),
        });
    }
    found
}

fn reachable<'a>(arrows: &'a Arrows, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(from) = next.pop() {
        for to in arrows.get(from).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(to.as_str()) {
                next.push(to);
            }
        }
    }
    reached
}
