//! Layers of a recipe, and where each value was written.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};
use toml_edit::{Document, Item};

use super::{Complaint, LoadOptions, RecipeError};

/// A `base` chain longer than this is a mistake.
const BASES_MAX: usize = 16;

/// One text that sets keys.
struct Layer {
    source: String,
    text: String,
    spans: Document<String>,
    values: Table,
}

/// All layers, weakest first.
pub(super) struct Layers {
    layers: Vec<Layer>,
    name: String,
}

impl Layers {
    pub(super) fn read(path: &Path, options: &LoadOptions) -> Result<Self, RecipeError> {
        let mut layers = Vec::new();
        let mut seen: Vec<PathBuf> = Vec::new();
        let mut next = Some(path.to_owned());
        while let Some(path) = next {
            let identity = path.canonicalize().unwrap_or_else(|_| path.clone());
            if seen.contains(&identity) || seen.len() >= BASES_MAX {
                return Err(RecipeError::Cycle { path });
            }
            seen.push(identity);
            let mut layer = Layer::file(&path)?;
            let base = layer.values.remove("base");
            next = match base {
                None => None,
                Some(Value::String(base)) => Some(path.parent().unwrap_or(Path::new("")).join(base)),
                Some(other) => {
                    let message = format!("expected a file name, found {}", other.type_str());
                    return Err(RecipeError::Wrong(vec![layer.complain(&["base".to_owned()], message)]));
                }
            };
            layers.push(layer);
        }
        layers.reverse();
        for set in &options.set {
            layers.push(Layer::option(set)?);
        }
        if !options.endpoints.is_empty() {
            let endpoints = Value::from(options.endpoints.clone());
            for layer in &mut layers {
                if let Some(Value::Table(fleet)) = layer.values.get_mut("fleet") {
                    fleet.remove("simulated");
                }
            }
            layers.push(Layer::parse("--endpoint".to_owned(), format!("fleet.endpoints = {endpoints}"))?);
        }
        Ok(Self { layers, name: path.display().to_string() })
    }

    /// Merges the layers and reads the whole.
    pub(super) fn resolve<T: DeserializeOwned>(&self) -> Result<T, RecipeError> {
        let mut merged = Table::new();
        for layer in &self.layers {
            merge(&mut merged, &layer.values);
        }
        serde_path_to_error::deserialize(Value::Table(merged)).map_err(|error| {
            let mut key: Vec<String> = error.path().iter().filter_map(segment).collect();
            let message = error.into_inner().message().trim().to_owned();
            if let Some(unknown) = quoted_after(&message, "unknown field `")
                && key.last() != Some(&unknown)
            {
                key.push(unknown);
            }
            RecipeError::Wrong(vec![self.complain(&key, with_suggestion(&message))])
        })
    }

    /// A complaint about `key`, placed where its strongest layer writes it.
    pub(super) fn complain(&self, key: &[String], message: String) -> Complaint {
        for layer in self.layers.iter().rev() {
            if layer.locate(key, false).is_some() {
                return layer.complain(key, message);
            }
        }
        Complaint {
            source: self.name.clone(),
            line: None,
            column: 1,
            text: String::new(),
            length: 0,
            key: key.join("."),
            message,
        }
    }
}

impl Layer {
    fn file(path: &Path) -> Result<Self, RecipeError> {
        let unreadable = |reason: String| RecipeError::Unreadable { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            unreadable(format!("expected UTF-8 text; byte {} is not", error.utf8_error().valid_up_to()))
        })?;
        Self::parse(path.display().to_string(), text)
    }

    fn option(set: &str) -> Result<Self, RecipeError> {
        let source = format!("--set {set}");
        let Some((key, value)) = set.split_once('=') else {
            return Err(RecipeError::Wrong(vec![Complaint {
                source,
                line: None,
                column: 1,
                text: String::new(),
                length: 0,
                key: set.to_owned(),
                message: "expected key=value".to_owned(),
            }]));
        };
        let as_toml = format!("{} = {}", key.trim(), value.trim());
        if Document::parse(as_toml.clone()).is_ok() {
            return Self::parse(source, as_toml);
        }
        // A bare word: the shell has eaten the quotes, or the user never typed them.
        Self::parse(source, format!("{} = {}", key.trim(), Value::from(value.trim())))
    }

    fn parse(source: String, text: String) -> Result<Self, RecipeError> {
        let wrong = |span: Option<std::ops::Range<usize>>, message: &str| {
            let (line, column, line_text) = place(&text, span.as_ref().map_or(0, |span| span.start));
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
        Ok(Self { source, text, spans, values })
    }

    /// Bytes of the value (or of the key alone, where that is what is wrong).
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
        if item.is_value() && !key_alone { item.span().or(key_span) } else { key_span.or_else(|| item.span()) }
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
    (line, column, text[line_start..].lines().next().unwrap_or("").to_owned())
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

fn quoted_after(message: &str, start: &str) -> Option<String> {
    let rest = message.split_once(start)?.1;
    Some(rest.split_once('`')?.0.to_owned())
}

/// Adds the nearest of the names that serde lists.
fn with_suggestion(message: &str) -> String {
    let Some((head, expected)) = message.split_once("expected ") else { return message.to_owned() };
    let Some(wrong) = quoted_after(head, "`") else { return message.to_owned() };
    let names = expected.split('`').skip(1).step_by(2);
    let nearest = names.map(|name| (distance(&wrong, name), name)).min();
    match nearest {
        Some((steps, name)) if steps <= 1 + wrong.len() / 4 => format!("{message}; did you mean `{name}`?"),
        _ => message.to_owned(),
    }
}

/// Levenshtein's.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.chars().enumerate() {
            let substituted = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[row.len() - 1]
}
