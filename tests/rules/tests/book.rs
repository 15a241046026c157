//! Checks the documentation: every page is in the summary, every link and anchor resolves, every test that a
//! table names exists, and code that a page quotes from the repository equals its source.
//!
//! A quotation is a fenced block that follows a line `<!-- copy: PATH -->`. With `<!-- copy: PATH#NAME -->`
//! it quotes only the lines between `ANCHOR: NAME` and `ANCHOR_END: NAME` in the source.
//! `ROLLDOCK_BOOK_WRITE=1 cargo test -p rolldock-rules --test book` updates the quotations.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rolldock_tests::workspace_root;

const PAGES: &str = "docs/src";
const SUMMARY: &str = "docs/src/SUMMARY.md";
/// Documents outside the book whose links and quotations are checked too.
const OTHERS: [&str; 6] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md", SUMMARY];
const COPY: &str = "<!-- copy: ";

/// The pages of the book, as paths from the root of the workspace.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = fs::read_dir(workspace_root().join(PAGES))
        .unwrap()
        .map(|entry| Path::new(PAGES).join(entry.unwrap().file_name()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .filter(|path| path != Path::new(SUMMARY))
        .collect();
    pages.sort();
    pages
}

fn read(path: &Path) -> String {
    fs::read_to_string(workspace_root().join(path)).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// The lines of a document outside fenced blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            lines.push((index + 1, line));
        }
    }
    lines
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("")
}

/// The targets of the links in a line.
fn links(line: &str) -> Vec<String> {
    let plain = without_code(line);
    let pieces = plain.split("](").skip(1);
    pieces.filter_map(|piece| piece.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of the headings in a document, as mdBook and the repository's web view generate them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let is_kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        let anchor: String = title.trim().to_lowercase().chars().filter(is_kept).collect();
        let anchor = anchor.replace(' ', "-");
        let count = counts.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Describes the fault of a link in `document`. Returns `None` if the link is right.
fn fault(document: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let folder = document.parent().unwrap();
    let path = if file.is_empty() { document.to_owned() } else { folder.join(file) };
    let Ok(absolute) = workspace_root().join(&path).canonicalize() else {
        return Some(format!("{target} does not exist"));
    };
    let book = workspace_root().join(PAGES).canonicalize().unwrap();
    if document.starts_with(PAGES) && !absolute.starts_with(&book) {
        return Some(format!("{target} leaves the book; name the file instead of linking to it"));
    }
    let anchor = anchor?;
    let text = fs::read_to_string(&absolute).unwrap();
    (!anchors(&text).contains(anchor)).then(|| format!("{target}: the page has no such heading"))
}

/// The text of a quotation of `source`, which is `PATH` or `PATH#NAME`.
fn quoted(source: &str) -> String {
    let (path, name) = source.split_once('#').map_or((source, None), |(path, name)| (path, Some(name)));
    let text = read(Path::new(path));
    let Some(name) = name else { return text };
    let (begin, end) = (format!("ANCHOR: {name}"), format!("ANCHOR_END: {name}"));
    let lines = text.lines().skip_while(|line| !line.ends_with(&begin)).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.ends_with(&end)).collect();
    assert!(!lines.is_empty(), "{path} has no lines between {begin} and {end}");
    let indent = lines.iter().filter(|line| !line.is_empty());
    let indent = indent.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    lines.iter().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect()
}

/// The text of a document with its quotations replaced by the current text of their sources.
fn with_quotations(document: &Path) -> String {
    let text = read(document);
    let mut lines = text.lines();
    let mut result = String::new();
    while let Some(line) = lines.next() {
        result.push_str(line);
        result.push('\n');
        let Some(source) = line.strip_prefix(COPY).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let fence = lines.find(|line| line.starts_with("```"));
        let fence = fence.unwrap_or_else(|| panic!("{document:?}: no block follows {line:?}"));
        lines.find(|line| *line == "```").unwrap_or_else(|| panic!("{document:?}: a block does not end"));
        result.push_str(&format!("\n{fence}\n{}```\n", quoted(source)));
    }
    result
}

#[test]
fn every_page_is_in_the_summary() {
    let summary = read(Path::new(SUMMARY));
    let listed: BTreeSet<PathBuf> =
        summary.lines().flat_map(links).map(|link| Path::new(PAGES).join(link)).collect();
    assert_eq!(listed, pages().into_iter().collect::<BTreeSet<_>>(), "the summary lists each page");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut faults = Vec::new();
    for document in OTHERS.iter().map(PathBuf::from).chain(pages()) {
        for (number, line) in prose(&read(&document)) {
            let wrong = links(line).into_iter().filter_map(|link| fault(&document, &link));
            faults.extend(wrong.map(|fault| format!("{}:{number}: {fault}", document.display())));
        }
    }
    assert!(faults.is_empty(), "broken links:\n{}", faults.join("\n"));
}

/// All Rust sources of the workspace except those in `bench/`, as one text.
fn sources() -> String {
    let mut folders: Vec<PathBuf> =
        ["listener", "loadbalancer", "orchestrator", "queue", "reward", "simengine", "tests"]
            .map(PathBuf::from)
            .to_vec();
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(workspace_root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                text.push_str(&read(&path));
            }
        }
    }
    text
}

#[test]
fn every_test_that_a_table_names_exists() {
    let sources = sources();
    let (mut names, mut missing) = (0, Vec::new());
    for page in pages() {
        let text = read(&page);
        let mut column = None;
        for line in text.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if !line.starts_with('|') {
                column = None;
            } else if let Some(header) = cells.iter().position(|cell| *cell == "test") {
                column = Some(header);
            } else if let Some(cell) = column.and_then(|column| cells.get(column)) {
                for name in cell.split('`').skip(1).step_by(2) {
                    names += 1;
                    if !sources.contains(&format!("fn {name}(")) {
                        missing.push(format!("{}: {name}", page.display()));
                    }
                }
            }
        }
    }
    assert!(names > 40, "only {names} names were found");
    assert!(missing.is_empty(), "tests that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn quoted_code_equals_its_source() {
    let is_writing = std::env::var_os("ROLLDOCK_BOOK_WRITE").is_some();
    for document in OTHERS.iter().map(PathBuf::from).chain(pages()) {
        let (found, expected) = (read(&document), with_quotations(&document));
        assert!(
            !found.contains("{{#"),
            "{document:?} has a directive, which the repository's browser shows raw"
        );
        if found == expected {
            continue;
        }
        assert!(
            is_writing,
            "{document:?} quotes outdated code; run ROLLDOCK_BOOK_WRITE=1 cargo test -p rolldock-rules --test book"
        );
        fs::write(workspace_root().join(&document), expected).unwrap();
    }
}
