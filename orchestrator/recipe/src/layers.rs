//! The layers of a recipe, with the position of each value.
//!
//! Each layer keeps its text, its values and the spans of its keys. The values of all layers are merged and
//! read by serde. A mistake in a key is shown in the strongest layer that sets the key. serde stops at the
//! first mistake. So the wrong value is left out and the rest is read again, until all mistakes are known.

mod choices;
mod servers;

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};
use toml_edit::{Document, Item};

use choices::Given;

use super::messages::{HUGE, in_plain_words, is_huge, quoted_after, with_suggestion};
use super::{Complaint, LoadOptions, RecipeError};

/// Maximum number of bases in a chain. A longer chain is a mistake.
const BASES_MAX: usize = 16;
/// Maximum bytes of a recipe. A larger file is something else, for example a data set.
const RECIPE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of wrong values that one error lists.
const COMPLAINTS_MAX: usize = 32;

/// One text that sets keys: a file or an option.
struct Layer {
    source: String,
    /// The folder of the file; `None` for keys from the command line.
    folder: Option<PathBuf>,
    text: String,
    spans: Document<String>,
    values: Table,
}

/// All layers, weakest first.
pub(super) struct Layers {
    layers: Vec<Layer>,
    path: PathBuf,
    /// Options that cannot be read as layers.
    wrong: Vec<Complaint>,
}

/// The values of all layers, as far as they can be read.
pub(super) struct Resolved<T> {
    /// The values without the wrong ones. `None` if a required value is missing.
    pub(super) value: Option<T>,
    pub(super) complaints: Vec<Complaint>,
    /// The keys whose values are wrong.
    left_out: Vec<Vec<String>>,
}

impl<T> Resolved<T> {
    /// Adds complaints about the values that could be read. These values were checked together with the
    /// defaults of the values that are left out. If values are left out, the messages mention it. A complaint
    /// that names a key that is left out is about the default of that key, and is not added.
    pub(super) fn add(&mut self, further: Vec<Complaint>) {
        let beside_defaults = !self.complaints.is_empty();
        for mut complaint in further {
            let names = |key: &Vec<String>| {
                // A key of one segment is an ordinary word.
                is_within(&complaint.key, key)
                    || (key.len() > 1 && complaint.message.contains(&key.join(".")))
            };
            if self.left_out.iter().any(names) {
                continue;
            }
            if beside_defaults {
                complaint.message.push_str(" (checked without the values above)");
            }
            self.complaints.push(complaint);
        }
    }
}

/// Whether the dotted key `key` is `table` or a key in it.
fn is_within(key: &str, table: &[String]) -> bool {
    let rest = key.strip_prefix(&table.join("."));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl Layers {
    pub(super) fn read(path: &Path, options: &LoadOptions) -> Result<Self, RecipeError> {
        let mut layers = read_chain(path)?;
        layers.reverse();
        let mut wrong = Vec::new();
        for set in &options.set {
            match Layer::option(set) {
                Ok(layer) => layers.push(layer),
                Err(RecipeError::Wrong(complaints)) => wrong.extend(complaints),
                Err(other) => return Err(other),
            }
        }
        if !options.endpoints.is_empty() {
            let endpoints = Value::from(options.endpoints.clone());
            for layer in &mut layers {
                if let Some(Value::Table(fleet)) = layer.values.get_mut("fleet") {
                    fleet.remove("simulated");
                }
            }
            let text = format!("fleet.endpoints = {endpoints}");
            layers.push(Layer::parse("--endpoint".to_owned(), None, text)?);
        }
        Ok(Self { layers, path: path.to_owned(), wrong })
    }

    /// The folder of the file that sets the used value of `key`; `None` if the command line or no layer sets
    /// it.
    pub(super) fn folder_of(&self, key: &[&str]) -> Option<&Path> {
        let (first, rest) = key.split_first()?;
        let writes = |layer: &Layer| {
            let table = layer.values.get(*first);
            rest.iter().try_fold(table?, |value, segment| value.get(*segment)).map(|_value| ())
        };
        self.layers.iter().rev().find(|layer| writes(layer).is_some())?.folder.as_deref()
    }

    /// Merges the layers and deserialises the result.
    ///
    /// # Errors
    /// [`RecipeError::Unreadable`] for a recipe without any key.
    pub(super) fn resolve<T: DeserializeOwned>(&self) -> Result<Resolved<T>, RecipeError> {
        let mut files = self.layers.iter().filter(|layer| layer.folder.is_some());
        let is_empty = files.all(|layer| layer.values.is_empty());
        let mut merged = Table::new();
        for layer in &self.layers {
            merge(&mut merged, &layer.values);
        }
        let mut resolved = Resolved { value: None, complaints: self.wrong.clone(), left_out: Vec::new() };
        while resolved.complaints.len() < COMPLAINTS_MAX {
            let error = match serde_path_to_error::deserialize(Given(Value::Table(merged.clone()))) {
                Ok(value) => {
                    resolved.value = Some(value);
                    break;
                }
                Err(error) => error,
            };
            if is_empty {
                let reason = "it is empty; expected the tables [model], [data], [fleet] and [rollout]";
                return Err(RecipeError::Unreadable { path: self.path.clone(), reason: reason.to_owned() });
            }
            let table: Vec<String> = error.path().iter().filter_map(segment).collect();
            let mut message = in_plain_words(error.into_inner().message().trim());
            let missing = quoted_after(&message, "missing field `");
            let named = missing.clone().or_else(|| quoted_after(&message, "unknown field `"));
            let mut key = table.clone();
            key.extend(named.filter(|named| table.last() != Some(named)));
            // A value that was left out counts as missing, so this is not a further mistake.
            if missing.is_none() || !resolved.left_out.contains(&key) {
                if let Some(name) = missing.as_ref().filter(|_| table.is_empty()) {
                    message = format!("missing table [{name}]");
                }
                let place = if missing.is_some() && !table.is_empty() { &table } else { &key };
                resolved.complaints.push(self.complain(place, with_suggestion(&message)));
            }
            let wrong = if missing.is_some() { table } else { key };
            if !remove(&mut merged, &wrong) {
                break;
            }
            resolved.left_out.push(wrong);
        }
        Ok(resolved)
    }

    /// A complaint about `key`, at its position in the strongest layer that sets it.
    pub(super) fn complain(&self, key: &[String], message: String) -> Complaint {
        // A table can be written as the value of its main key alone. The keys of the table then have the
        // position of that value.
        for length in (2.min(key.len())..=key.len()).rev() {
            let written = &key[..length];
            for layer in self.layers.iter().rev() {
                if layer.locate(written, false).is_some() {
                    return Complaint { key: key.join("."), ..layer.complain(written, message) };
                }
            }
        }
        Complaint {
            source: self.path.display().to_string(),
            line: None,
            column: 1,
            text: String::new(),
            length: 0,
            key: key.join("."),
            message,
        }
    }
}

/// A file and its bases, strongest first.
fn read_chain(path: &Path) -> Result<Vec<Layer>, RecipeError> {
    let mut layer = Layer::file(path)?;
    let mut seen = vec![identity(path)];
    let mut chain = Vec::new();
    while let Some(base) = layer.values.remove("base") {
        let complain =
            |message: String| RecipeError::Wrong(vec![layer.complain(&["base".to_owned()], message)]);
        let Value::String(base) = base else {
            return Err(complain(format!("expected a file name, found {}", base.type_str())));
        };
        let base_path = path_beside(&layer, &base);
        let base_identity = identity(&base_path);
        if seen.contains(&base_identity) {
            return Err(complain(format!("this makes {} its own base", base_path.display())));
        }
        if seen.len() > BASES_MAX {
            return Err(complain(format!("expected at most {BASES_MAX} bases in a chain")));
        }
        let base_layer = Layer::file(&base_path).map_err(|error| match error {
            RecipeError::Unreadable { path, reason } => {
                complain(format!("cannot read {}: {reason}", path.display()))
            }
            wrong @ RecipeError::Wrong(_) => wrong,
        })?;
        seen.push(base_identity);
        chain.push(std::mem::replace(&mut layer, base_layer));
    }
    chain.push(layer);
    Ok(chain)
}

fn path_beside(layer: &Layer, name: &str) -> PathBuf {
    layer.folder.as_deref().unwrap_or(Path::new("")).join(name)
}

/// A path that is the same for all spellings of the path of an existing file.
fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn read_text(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(RECIPE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > RECIPE_BYTES_MAX {
        return Err(format!("expected a recipe of at most {RECIPE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("expected UTF-8 text; byte {valid}, in line {line}, is not")
    })
}

impl Layer {
    fn file(path: &Path) -> Result<Self, RecipeError> {
        let text =
            read_text(path).map_err(|reason| RecipeError::Unreadable { path: path.to_owned(), reason })?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Self::parse(path.display().to_string(), Some(folder), text)
    }

    fn option(set: &str) -> Result<Self, RecipeError> {
        let source = format!("--set {set}");
        let wrong = |message: &str| {
            RecipeError::Wrong(vec![Complaint {
                source: source.clone(),
                line: None,
                column: 1,
                text: String::new(),
                length: 0,
                key: set.split('=').next().unwrap_or(set).to_owned(),
                message: message.to_owned(),
            }])
        };
        // Only one line is allowed, because a complaint could not show keys on a second line.
        if set.contains(['\n', '\r']) {
            return Err(wrong("expected one line, key=value"));
        }
        let (key, value) = set.split_once('=').ok_or_else(|| wrong("expected key=value"))?;
        if key.trim() == "base" {
            return Err(wrong("a base can only be named in a file"));
        }
        if is_huge(value.trim()) {
            return Err(wrong(HUGE));
        }
        let as_toml = format!("{} = {}", key.trim(), value.trim());
        if Document::parse(as_toml.clone()).is_ok() {
            return Self::parse(source, None, as_toml);
        }
        // The value is a word without quotes. The shell may have removed them.
        Self::parse(source, None, format!("{} = {}", key.trim(), Value::from(value.trim())))
    }

    fn parse(source: String, folder: Option<PathBuf>, text: String) -> Result<Self, RecipeError> {
        let wrong = |span: Option<std::ops::Range<usize>>, message: &str| {
            let (line, column, line_text) = place(&text, span.as_ref().map_or(0, |span| span.start));
            let message =
                if span.and_then(|span| text.get(span)).is_some_and(is_huge) { HUGE } else { message };
            RecipeError::Wrong(vec![Complaint {
                source: source.clone(),
                line: Some(line),
                column,
                length: 1,
                text: line_text,
                key: "(syntax)".to_owned(),
                message: message.trim().replace('\n', ", "),
            }])
        };
        let spans = Document::parse(text.clone()).map_err(|error| wrong(error.span(), error.message()))?;
        let values: Table = toml::from_str(&text).map_err(|error| wrong(error.span(), error.message()))?;
        Ok(Self { source, folder, text, spans, values })
    }

    /// The byte range of the value, or of the key if `key_alone` is set.
    fn locate(&self, key: &[String], key_alone: bool) -> Option<std::ops::Range<usize>> {
        let mut item: &Item = self.spans.as_item();
        let mut key_span = None;
        for segment in key {
            if let Some(table) = item.as_table_like() {
                let (found, value) = table.get_key_value(segment)?;
                key_span = found.span();
                item = value;
            } else {
                item = item.get(segment.parse::<usize>().ok()?)?;
                key_span = item.span();
            }
        }
        if item.is_value() && !key_alone {
            item.span().or(key_span)
        } else {
            key_span.or_else(|| item.span())
        }
    }

    fn complain(&self, key: &[String], message: String) -> Complaint {
        let span = self.locate(key, message.starts_with("unknown field")).unwrap_or(0..0);
        let (line, column, text) = place(&self.text, span.start);
        let first_line = self.text.get(span).unwrap_or("").lines().next().unwrap_or("");
        Complaint {
            source: self.source.clone(),
            line: Some(line),
            column,
            text,
            length: first_line.chars().count(),
            key: key.join("."),
            message,
        }
    }
}

fn place(text: &str, offset: usize) -> (usize, usize, String) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before[line_start..].chars().count() + 1;
    // Each character is replaced by exactly one character, so the carets stay below the right characters.
    let printable = |character: char| match character {
        '\t' => ' ',
        other if other.is_control() => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    let line_text = text[line_start..].lines().next().unwrap_or("").chars().map(printable).collect();
    (line, column, line_text)
}

fn segment(segment: &serde_path_to_error::Segment) -> Option<String> {
    use serde_path_to_error::Segment;
    match segment {
        Segment::Map { key } => Some(key.clone()),
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

fn merge(into: &mut Table, from: &Table) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Removes the value of `key`, or the list that contains it. Returns `false` if there is no such value.
fn remove(table: &mut Table, key: &[String]) -> bool {
    let Some((first, rest)) = key.split_first() else { return false };
    match table.get_mut(first) {
        Some(Value::Table(inner)) if !rest.is_empty() => remove(inner, rest),
        Some(_) => table.remove(first).is_some(),
        None => false,
    }
}
