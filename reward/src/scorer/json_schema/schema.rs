//! A compiled schema that checks documents. It supports the keywords of JSON Schema 2020-12 that
//! [`SCHEMA_KEYWORDS`] lists.
//!
//! Numbers are compared as 64-bit floats, so 1 equals 1.0, as the standard requires; integers beyond 2^53
//! lose their last digits. `multipleOf` is exact for decimals as they are written. Strings are measured in
//! code points. Patterns have the syntax of the `regex` crate. References stay within the schema: `#`, or
//! `#/` and a JSON pointer.
//!
//! # Invariants
//! - A check takes at most [`SCHEMA_STEPS_MAX`] steps, no matter how branches and references multiply; a
//!   document that needs more steps does not match.
//! - Depth, size and number of patterns of a schema are bounded.

mod check;
mod compile;

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::Ratio;
use regex::Regex;
use serde_json::Value;

use crate::RewardError;

/// Keywords that are checked; `title`, `description`, `default`, `examples`, `$schema`, `$id` and `$comment`
/// may stand beside them.
pub const SCHEMA_KEYWORDS: &str = "type, required, properties, patternProperties, additionalProperties, minProperties, maxProperties, items, \
     prefixItems, minItems, maxItems, uniqueItems, enum, const, minimum, maximum, exclusiveMinimum, exclusiveMaximum, \
     multipleOf, minLength, maxLength, pattern, anyOf, oneOf, allOf, not, $ref, $defs, definitions";
/// Maximum number of bytes of a schema's text.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Maximum depth of schemas within schemas; references do not count.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// Maximum number of patterns of a schema.
pub const SCHEMA_PATTERNS_MAX: usize = 32;
/// Approximate maximum number of checks of a value against a schema, for one document; a long text counts as
/// several checks.
pub const SCHEMA_STEPS_MAX: usize = 1 << 22;

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Schema {
    /// The first part is the whole schema. Parts refer to each other by index, so references may form cycles.
    parts: Vec<Part>,
}

/// The index of a part.
type Id = usize;

#[derive(Debug)]
enum Part {
    /// Anything: `true`.
    Any,
    /// Nothing: `false`.
    Never,
    /// What the keywords allow.
    Keywords(Box<Keywords>),
}

/// The keywords of one schema; an absent keyword allows everything.
#[derive(Debug, Default)]
struct Keywords {
    types: Option<Vec<Type>>,
    members: Option<Vec<Value>>,
    constant: Option<Value>,
    numbers: Vec<Bound>,
    divisor: Option<Ratio<BigInt>>,
    code_points: Counts,
    pattern: Option<Regex>,
    elements: Counts,
    has_unique_elements: bool,
    prefix: Vec<Id>,
    items: Option<Id>,
    count: Counts,
    required: Vec<String>,
    properties: BTreeMap<String, Id>,
    patterned: Vec<(Regex, Id)>,
    additional: Option<Id>,
    /// `allOf` and `$ref`.
    all: Vec<Id>,
    any: Option<Vec<Id>>,
    one: Option<Vec<Id>>,
    not: Option<Id>,
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

/// A range of counts; both ends are included.
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
    /// Compiles a schema; an error names the keyword and the reason.
    pub(super) fn compile(value: &Value) -> Result<Self, RewardError> {
        compile::compile(value)
    }

    /// Whether a document matches.
    pub(super) fn allows(&self, value: &Value) -> bool {
        check::fits(&self.parts, value)
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

/// The exact value of the number as it is written.
fn decimal(number: &serde_json::Number) -> Option<Ratio<BigInt>> {
    let text = number.to_string();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: BigInt = format!("{whole}{fraction}").parse().ok()?;
    // Floats end at 1e308, so the power of ten has a bound.
    let shift = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()?;
    let ten = Ratio::from_integer(BigInt::from(10));
    Some(Ratio::from_integer(digits) * ten.pow(shift))
}

#[cfg(test)]
mod tests;
