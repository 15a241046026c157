//! The meaning of a row's columns.
//!
//! The first row of a file determines the schema of all its rows. Values keep their text in the row, so a
//! ground truth that is written as a number keeps all of its digits.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::reader::RowLocation;
use crate::{Columns, DataError, Message, PromptContent};

const DIFFICULTY: &str = "extra_info.difficulty";
const PROMPTS: [&str; 3] = ["prompt", "question", "problem"];
const ANSWERS: [&str; 3] = ["reward_model.ground_truth", "answer", "ground_truth"];
const ANSWER_MARK: &str = "####";

/// A parsed row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) prompt: PromptContent,
    pub(super) answer: String,
    pub(super) source: String,
    pub(super) difficulty: Option<f32>,
    /// The other columns, as one JSON object.
    pub(super) fields: String,
}

/// The columns in which a file's rows keep prompt, answer and source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schema {
    prompt: String,
    answer: String,
    /// Whether the answer is the text after the last `####`, as in GSM8K.
    answer_marked: bool,
    source: SourceOfRows,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SourceOfRows {
    Column(String),
    All(String),
}

impl Schema {
    /// The schema of a file whose first row is `json`.
    pub(super) fn detect(
        place: RowLocation<'_>,
        json: &str,
        columns: Option<&Columns>,
    ) -> Result<Self, DataError> {
        let object = parse_row(place, json)?;
        if let Some(columns) = columns {
            let source = match &columns.source {
                Some(column) => SourceOfRows::Column(column.clone()),
                None => source_of(place, &object, None),
            };
            let (prompt, answer) = (columns.prompt.clone(), columns.answer.clone());
            return Ok(Self { prompt, answer, answer_marked: false, source });
        }
        let known = |paths: &[&'static str]| paths.iter().copied().find(|path| object.find(path).is_some());
        let (Some(prompt), Some(answer)) = (known(&PROMPTS), known(&ANSWERS)) else {
            let names: Vec<&str> = object.0.iter().map(|(name, _)| &**name).collect();
            return Err(DataError::Schema { place: place.into_row_place(), columns: names.join(", ") });
        };
        let answer_marked = prompt == "question"
            && object.find(answer).is_some_and(|value| value.get().contains(ANSWER_MARK));
        let is_math_500 = prompt == "problem" && object.find("unique_id").is_some();
        let famous = match (answer_marked, is_math_500) {
            (true, _) => Some("openai/gsm8k"),
            (false, true) => Some("HuggingFaceH4/MATH-500"),
            (false, false) => None,
        };
        let source = source_of(place, &object, famous);
        Ok(Self { prompt: prompt.to_owned(), answer: answer.to_owned(), answer_marked, source })
    }

    /// Reads a row and checks every value that has a meaning.
    pub(super) fn read(&self, place: RowLocation<'_>, json: &str) -> Result<Row, DataError> {
        let object = parse_row(place, json)?;
        let prompt = read_prompt(place, &self.prompt, object.find(&self.prompt))?;
        let mut answer = read_text(place, &self.answer, object.find(&self.answer))?;
        if self.answer_marked {
            answer = answer_after_mark(&answer)
                .ok_or_else(|| place.complain(&self.answer, "an answer after ####", excerpt(&answer)))?;
        }
        let source = match &self.source {
            SourceOfRows::All(name) => name.clone(),
            SourceOfRows::Column(column) => read_text(place, column, object.find(column))?,
        };
        let difficulty = object.find(DIFFICULTY).and_then(|value| value.get().parse::<f32>().ok());
        Ok(Row {
            prompt,
            answer,
            source,
            difficulty: difficulty.filter(|difficulty| (0.0..=1.0).contains(difficulty)),
            fields: self.other_fields(&object),
        })
    }

    /// The columns that are not completely contained in prompt, answer or source.
    fn other_fields(&self, object: &Object<'_>) -> String {
        let is_taken = |name: &str| {
            name == self.prompt
                || (name == self.answer && !self.answer_marked)
                || matches!(&self.source, SourceOfRows::Column(column) if column == name)
        };
        let entries = object.0.iter().filter(|(name, _)| !is_taken(name));
        let texts: Vec<String> = entries
            .map(|(name, value)| format!("{}:{}", serde_json::Value::from(&**name), value.get()))
            .collect();
        format!("{{{}}}", texts.join(","))
    }
}

fn source_of(place: RowLocation<'_>, object: &Object<'_>, famous: Option<&str>) -> SourceOfRows {
    if object.find("data_source").is_some() {
        return SourceOfRows::Column("data_source".to_owned());
    }
    SourceOfRows::All(famous.map_or_else(|| place.file_stem(), str::to_owned))
}

/// A JSON object whose values are not parsed.
struct Object<'json>(Vec<(Cow<'json, str>, &'json RawValue)>);

impl<'json> Object<'json> {
    /// The value at a dotted path, or in a column whose name contains the dots.
    fn find(&self, path: &str) -> Option<&'json RawValue> {
        // If a name occurs several times, its last value counts, as in most readers of JSON.
        if let Some((_, value)) = self.0.iter().rfind(|(name, _)| name == path) {
            return Some(value);
        }
        let (column, rest) = path.split_once('.')?;
        let (_, value) = self.0.iter().rfind(|(name, _)| name == column)?;
        let inner: Self = serde_json::from_str(value.get()).ok()?;
        inner.find(rest)
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
        let mut entries = Vec::with_capacity(map.size_hint().unwrap_or(8));
        while let Some((Name(name), value)) = map.next_entry()? {
            entries.push((name, value));
        }
        Ok(Object(entries))
    }
}

#[derive(Deserialize)]
struct Name<'json>(#[serde(borrow)] Cow<'json, str>);

fn parse_row<'json>(place: RowLocation<'_>, json: &'json str) -> Result<Object<'json>, DataError> {
    serde_json::from_str(json).map_err(|error| place.complain("*", "a JSON object", error.to_string()))
}

fn read_prompt(
    place: RowLocation<'_>,
    column: &str,
    value: Option<&RawValue>,
) -> Result<PromptContent, DataError> {
    const EXPECTED: &str = "text, or a list of messages with role and content";
    let Some(value) = value else { return Err(place.complain(column, EXPECTED, "nothing")) };
    let json = value.get();
    let content = match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(json).map(PromptContent::Text),
        Some(b'[') => serde_json::from_str::<Vec<Message>>(json).map(PromptContent::Messages),
        _ => return Err(place.complain(column, EXPECTED, excerpt(json))),
    };
    let content = content.map_err(|error| place.complain(column, EXPECTED, error.to_string()))?;
    let is_empty = match &content {
        PromptContent::Text(text) => text.trim().is_empty(),
        PromptContent::Messages(messages) => messages.iter().all(|message| message.content.trim().is_empty()),
    };
    if is_empty {
        return Err(place.complain(column, EXPECTED, "an empty prompt"));
    }
    Ok(content)
}

/// Reads a string, or the text of a number.
fn read_text(place: RowLocation<'_>, column: &str, value: Option<&RawValue>) -> Result<String, DataError> {
    const EXPECTED: &str = "a string or a number";
    let Some(value) = value else { return Err(place.complain(column, EXPECTED, "nothing")) };
    let json = value.get();
    let text = match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(json)
            .map_err(|error| place.complain(column, EXPECTED, error.to_string()))?,
        Some(b'-' | b'0'..=b'9') => json.to_owned(),
        _ => return Err(place.complain(column, EXPECTED, excerpt(json))),
    };
    if text.trim().is_empty() {
        return Err(place.complain(column, EXPECTED, "an empty string"));
    }
    Ok(text)
}

/// GSM8K's final answer, without thousands separators, as its scorers expect it.
fn answer_after_mark(solution: &str) -> Option<String> {
    let (_, answer) = solution.rsplit_once(ANSWER_MARK)?;
    let digits = answer.trim().replace(',', "");
    (!digits.is_empty()).then_some(digits)
}

/// The beginning of a value, for error messages.
fn excerpt(value: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut text: String = value.chars().take(CHARS_MAX).collect();
    if text.len() < value.len() {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests;
