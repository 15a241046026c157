//! Compares a result with the expected one, as Python's `==` compares the values of two JSON texts.
//!
//! Whole numbers may have any length and are compared by their digits; other numbers are compared as doubles;
//! `true` is 1 and `false` is 0. Lists and objects are compared member by member. Values nested deeper than
//! [`DEPTH_MAX`] are not equal: every level parses its text again, so the depth bounds the work.
//!
//! # Deliberately absent
//! Floats are compared without a tolerance, because the reference implementations have none for functions.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Maximum number of levels of lists and objects.
const DEPTH_MAX: usize = 64;

/// Whether `result` equals `expected`. If `expected` is a list with one member, `result` may also equal that
/// member, because some data sets wrap results in a list.
pub(super) fn is_expected(result: &RawValue, expected: &RawValue) -> bool {
    if equal(result, expected, 0) {
        return true;
    }
    match members(expected).as_deref() {
        Some([only]) => equal(result, only, 0),
        _ => false,
    }
}

fn members(value: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(value.get()).ok()
}

fn equal(left: &RawValue, right: &RawValue, depth: usize) -> bool {
    if depth > DEPTH_MAX {
        return false;
    }
    let (a, b) = (left.get(), right.get());
    match (kind(a), kind(b)) {
        (Kind::List, Kind::List) => {
            let (Some(a), Some(b)) = (members(left), members(right)) else { return false };
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| equal(a, b, depth + 1))
        }
        (Kind::Object, Kind::Object) => {
            type Fields<'a> = BTreeMap<String, &'a RawValue>;
            let (Ok(a), Ok(b)) =
                (serde_json::from_str::<Fields<'_>>(a), serde_json::from_str::<Fields<'_>>(b))
            else {
                return false;
            };
            a.len() == b.len()
                && a.iter().zip(&b).all(|((key, a), (other, b))| key == other && equal(a, b, depth + 1))
        }
        (Kind::Text, Kind::Text) => {
            let text = |json: &str| serde_json::from_str::<String>(json).ok();
            text(a).is_some_and(|a| text(b) == Some(a))
        }
        (Kind::Null, Kind::Null) => true,
        (Kind::Number(a), Kind::Number(b)) => same_number(a, b),
        _ => false,
    }
}

enum Kind<'a> {
    Null,
    Number(&'a str),
    Text,
    List,
    Object,
}

fn kind(json: &str) -> Kind<'_> {
    match json.as_bytes().first() {
        Some(b'[') => Kind::List,
        Some(b'{') => Kind::Object,
        Some(b'"') => Kind::Text,
        Some(b't') => Kind::Number("1"),
        Some(b'f') => Kind::Number("0"),
        Some(b'n') | None => Kind::Null,
        Some(_) => Kind::Number(json),
    }
}

fn same_number(a: &str, b: &str) -> bool {
    let is_whole = |number: &str| !number.contains(['.', 'e', 'E']);
    if is_whole(a) && is_whole(b) {
        let digits = |number| if number == "-0" { "0" } else { number };
        // JSON has no leading zeros, so equal numbers are equal texts.
        return digits(a) == digits(b);
    }
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
