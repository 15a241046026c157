//! A schema, ready to check documents: the subset of JSON Schema 2020-12 in [`SCHEMA_KEYWORDS`].
//!
//! Numbers are compared as 64-bit floats, so that 1 and 1.0 are the same, as the standard has it; integers beyond
//! 2^53 lose their last digits. Lengths of strings are code points. Patterns are the `regex` crate's.
//!
//! # Invariants
//! - A document's value is checked against at most one schema of every level, and compared with the members of
//!   `enum`s: time is linear in the document, for a given schema.
//! - Depth, size and number of patterns of a schema are bounded.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

use crate::RewardError;
use crate::scorer::pattern;

/// Keywords that are checked; `title`, `description`, `default`, `examples`, `$schema`, `$id` and `$comment` may
/// stand beside them.
pub const SCHEMA_KEYWORDS: &str = "type, required, properties, additionalProperties, items, enum, const, minimum, maximum, exclusiveMinimum, \
     exclusiveMaximum, minLength, maxLength, minItems, maxItems, pattern";
/// Bytes of a schema's text.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Schemas within schemas.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// Patterns of a whole schema.
pub const SCHEMA_PATTERNS_MAX: usize = 32;

/// What a document may be.
#[derive(Debug)]
pub(super) enum Schema {
    /// Anything: `true`.
    Any,
    /// Nothing: `false`.
    Never,
    /// What the keywords allow.
    Keywords(Box<Keywords>),
}

/// One schema's keywords; what is not there allows everything.
#[derive(Debug, Default)]
pub(super) struct Keywords {
    types: Option<Vec<Type>>,
    required: Vec<String>,
    properties: BTreeMap<String, Schema>,
    additional: Option<Schema>,
    items: Option<Schema>,
    members: Option<Vec<Value>>,
    constant: Option<Value>,
    numbers: Vec<Bound>,
    code_points: Counts,
    elements: Counts,
    pattern: Option<Regex>,
}

#[derive(Debug, Clone, Copy)]
enum Type {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    Least(f64),
    Most(f64),
    Above(f64),
    Below(f64),
}

/// Both ends included.
#[derive(Debug, Default)]
struct Counts {
    min: Option<u64>,
    max: Option<u64>,
}

impl Counts {
    fn allow(&self, count: usize) -> bool {
        let count = count as u64;
        self.min.is_none_or(|min| count >= min) && self.max.is_none_or(|max| count <= max)
    }
}

impl Schema {
    /// An error names the keyword and the reason.
    pub(super) fn compile(value: &Value) -> Result<Self, RewardError> {
        Compiler { patterns: 0 }.schema(value, 0)
    }

    /// Whether a document matches.
    pub(super) fn allows(&self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Never => false,
            Self::Keywords(keywords) => keywords.allow(value),
        }
    }
}

impl Keywords {
    fn allow(&self, value: &Value) -> bool {
        let has_type = self.types.as_ref().is_none_or(|types| types.iter().any(|kind| kind.is_of(value)));
        let is_member =
            self.members.as_ref().is_none_or(|members| members.iter().any(|member| equal(member, value)));
        let is_constant = self.constant.as_ref().is_none_or(|constant| equal(constant, value));
        if !(has_type && is_member && is_constant) {
            return false;
        }
        match value {
            Value::Null | Value::Bool(_) => true,
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                self.numbers.iter().all(|bound| bound.allows(number))
            }
            Value::String(text) => {
                self.code_points.allow(text.chars().count())
                    && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
            }
            Value::Array(elements) => {
                let allows = |items: &Schema| elements.iter().all(|element| items.allows(element));
                self.elements.allow(elements.len()) && self.items.as_ref().is_none_or(allows)
            }
            Value::Object(object) => self.allow_object(object),
        }
    }

    fn allow_object(&self, object: &Map<String, Value>) -> bool {
        let allows = |(name, value): (&String, &Value)| match self.properties.get(name) {
            Some(property) => property.allows(value),
            None => self.additional.as_ref().is_none_or(|additional| additional.allows(value)),
        };
        self.required.iter().all(|name| object.contains_key(name)) && object.iter().all(allows)
    }
}

impl Type {
    fn is_of(self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Boolean => value.is_boolean(),
            Self::Integer => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
            }
            Self::Number => value.is_number(),
            Self::String => value.is_string(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
        }
    }

    fn of_word(word: &Value) -> Result<Self, RewardError> {
        Ok(match word.as_str() {
            Some("null") => Self::Null,
            Some("boolean") => Self::Boolean,
            Some("integer") => Self::Integer,
            Some("number") => Self::Number,
            Some("string") => Self::String,
            Some("array") => Self::Array,
            Some("object") => Self::Object,
            _ => {
                let known = "expected null, boolean, integer, number, string, array or object";
                return Err(RewardError::invalid("schema type", word, known));
            }
        })
    }
}

impl Bound {
    fn allows(self, number: f64) -> bool {
        match self {
            Self::Least(least) => number >= least,
            Self::Most(most) => number <= most,
            Self::Above(below) => number > below,
            Self::Below(above) => number < above,
        }
    }
}

/// Equality of JSON values, where numbers are equal by value.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(left, right)| equal(left, right))
        }
        (Value::Object(x), Value::Object(y)) => {
            let in_y =
                |(name, value): (&String, &Value)| y.get(name).is_some_and(|other| equal(value, other));
            x.len() == y.len() && x.iter().all(in_y)
        }
        _ => a == b,
    }
}

/// Turns a schema's JSON into a [`Schema`], within the bounds.
struct Compiler {
    patterns: usize,
}

impl Compiler {
    fn schema(&mut self, value: &Value, depth: usize) -> Result<Schema, RewardError> {
        if depth > SCHEMA_DEPTH_MAX {
            let reason = format!("deeper than {SCHEMA_DEPTH_MAX} schemas");
            return Err(RewardError::invalid("schema", value, reason));
        }
        let object = match value {
            Value::Bool(true) => return Ok(Schema::Any),
            Value::Bool(false) => return Ok(Schema::Never),
            Value::Object(object) => object,
            other => return Err(RewardError::invalid("schema", other, "expected an object, true or false")),
        };
        let mut keywords = Keywords::default();
        for (keyword, argument) in object {
            self.keyword(&mut keywords, keyword, argument, depth)?;
        }
        Ok(Schema::Keywords(Box::new(keywords)))
    }

    fn keyword(
        &mut self,
        keywords: &mut Keywords,
        keyword: &str,
        argument: &Value,
        depth: usize,
    ) -> Result<(), RewardError> {
        match keyword {
            "type" => keywords.types = Some(types(argument)?),
            "required" => keywords.required = names(argument)?,
            "properties" => {
                let properties =
                    argument.as_object().ok_or_else(|| expected("an object", keyword, argument))?;
                for (name, property) in properties {
                    keywords.properties.insert(name.clone(), self.schema(property, depth + 1)?);
                }
            }
            "additionalProperties" => keywords.additional = Some(self.schema(argument, depth + 1)?),
            "items" => keywords.items = Some(self.schema(argument, depth + 1)?),
            "enum" => {
                let members = argument.as_array().ok_or_else(|| expected("an array", keyword, argument))?;
                keywords.members = Some(members.clone());
            }
            "const" => keywords.constant = Some(argument.clone()),
            "minimum" => keywords.numbers.push(Bound::Least(number(keyword, argument)?)),
            "maximum" => keywords.numbers.push(Bound::Most(number(keyword, argument)?)),
            "exclusiveMinimum" => keywords.numbers.push(Bound::Above(number(keyword, argument)?)),
            "exclusiveMaximum" => keywords.numbers.push(Bound::Below(number(keyword, argument)?)),
            "minLength" => keywords.code_points.min = Some(count(keyword, argument)?),
            "maxLength" => keywords.code_points.max = Some(count(keyword, argument)?),
            "minItems" => keywords.elements.min = Some(count(keyword, argument)?),
            "maxItems" => keywords.elements.max = Some(count(keyword, argument)?),
            "pattern" => keywords.pattern = Some(self.pattern(argument)?),
            "title" | "description" | "default" | "examples" | "$schema" | "$id" | "$comment" => {}
            _ => {
                let reason = format!("not checked here; expected one of: {SCHEMA_KEYWORDS}");
                return Err(RewardError::invalid("schema keyword", keyword, reason));
            }
        }
        Ok(())
    }

    fn pattern(&mut self, argument: &Value) -> Result<Regex, RewardError> {
        self.patterns += 1;
        if self.patterns > SCHEMA_PATTERNS_MAX {
            let reason = format!("more than {SCHEMA_PATTERNS_MAX} patterns");
            return Err(RewardError::invalid("schema", argument, reason));
        }
        let text = argument.as_str().ok_or_else(|| expected("a string", "pattern", argument))?;
        pattern::compile(text)
    }
}

fn expected(what: &str, keyword: &str, argument: &Value) -> RewardError {
    RewardError::invalid("schema", format!("{keyword}: {argument}"), format!("expected {what}"))
}

fn types(argument: &Value) -> Result<Vec<Type>, RewardError> {
    match argument {
        Value::Array(words) => words.iter().map(Type::of_word).collect(),
        word => Ok(vec![Type::of_word(word)?]),
    }
}

fn names(argument: &Value) -> Result<Vec<String>, RewardError> {
    let wrong = || expected("an array of strings", "required", argument);
    let names = argument.as_array().ok_or_else(wrong)?;
    names.iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

fn number(keyword: &str, argument: &Value) -> Result<f64, RewardError> {
    argument.as_f64().ok_or_else(|| expected("a number", keyword, argument))
}

fn count(keyword: &str, argument: &Value) -> Result<u64, RewardError> {
    argument.as_u64().ok_or_else(|| expected("a whole number, 0 or more", keyword, argument))
}

#[cfg(test)]
mod tests;
