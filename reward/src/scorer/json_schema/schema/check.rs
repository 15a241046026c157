//! Checks documents, within a budget of steps.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Id, Keywords, Part, SCHEMA_STEPS_MAX, decimal};

/// Maximum number of nested checks; a schema that refers to itself would otherwise recurse without end.
const DEPTH_MAX: usize = 400;
/// How many bytes of text count as one step.
const BYTES_PER_STEP: usize = 16;

/// The check exceeded its budget without a result.
struct OverBudget;

type Fits = Result<bool, OverBudget>;

/// Whether the value matches the first part; a value whose check exceeds the budget does not match.
pub(super) fn fits(parts: &[Part], value: &Value) -> bool {
    Check { parts, steps_left: SCHEMA_STEPS_MAX, depth: 0 }.part(0, value).unwrap_or(false)
}

struct Check<'a> {
    parts: &'a [Part],
    steps_left: usize,
    depth: usize,
}

impl Check<'_> {
    fn pay(&mut self, steps: usize) -> Result<(), OverBudget> {
        self.steps_left = self.steps_left.checked_sub(steps).ok_or(OverBudget)?;
        Ok(())
    }

    fn part(&mut self, id: Id, value: &Value) -> Fits {
        self.pay(1)?;
        let parts = self.parts;
        let keywords = match parts.get(id) {
            Some(Part::Keywords(keywords)) => keywords,
            Some(Part::Any) => return Ok(true),
            Some(Part::Never) | None => return Ok(false),
        };
        if self.depth == DEPTH_MAX {
            return Err(OverBudget);
        }
        self.depth += 1;
        let fits = Ok(self.value(keywords, value)? && self.branches(keywords, value)?);
        self.depth -= 1;
        fits
    }

    fn value(&mut self, keywords: &Keywords, value: &Value) -> Fits {
        let has_type = keywords.types.as_ref().is_none_or(|types| types.iter().any(|kind| kind.is_of(value)));
        if !has_type || keywords.constant.as_ref().is_some_and(|constant| !equal(constant, value)) {
            return Ok(false);
        }
        if let Some(members) = &keywords.members {
            self.pay(members.len())?;
            if !members.iter().any(|member| equal(member, value)) {
                return Ok(false);
            }
        }
        match value {
            Value::Null | Value::Bool(_) => Ok(true),
            Value::Number(number) => {
                let float = number.as_f64().unwrap_or(f64::NAN);
                let is_multiple = keywords.divisor.as_ref().is_none_or(|divisor| {
                    decimal(number).is_some_and(|number| (number / divisor).is_integer())
                });
                Ok(is_multiple && keywords.numbers.iter().all(|bound| bound.allows(float)))
            }
            Value::String(text) => {
                self.pay(text.len() / BYTES_PER_STEP)?;
                let has_pattern = keywords.pattern.as_ref().is_none_or(|pattern| pattern.is_match(text));
                Ok(has_pattern && keywords.code_points.allow(text.chars().count()))
            }
            Value::Array(elements) => self.array(keywords, elements),
            Value::Object(object) => self.object(keywords, object),
        }
    }

    fn array(&mut self, keywords: &Keywords, elements: &[Value]) -> Fits {
        if !keywords.elements.allow(elements.len()) {
            return Ok(false);
        }
        if keywords.has_unique_elements {
            let mut seen = BTreeSet::new();
            for element in elements {
                let text = canonical(element);
                self.pay(1 + text.len() / BYTES_PER_STEP)?;
                if !seen.insert(text) {
                    return Ok(false);
                }
            }
        }
        for (index, element) in elements.iter().enumerate() {
            let part = keywords.prefix.get(index).copied().or(keywords.items);
            if let Some(part) = part
                && !self.part(part, element)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn object(&mut self, keywords: &Keywords, object: &Map<String, Value>) -> Fits {
        let has_all = keywords.required.iter().all(|name| object.contains_key(name));
        if !has_all || !keywords.count.allow(object.len()) {
            return Ok(false);
        }
        for (name, value) in object {
            let property = keywords.properties.get(name);
            let mut is_known = property.is_some();
            if let Some(property) = property
                && !self.part(*property, value)?
            {
                return Ok(false);
            }
            for (pattern, part) in &keywords.patterned {
                self.pay(1 + name.len() / BYTES_PER_STEP)?;
                if pattern.is_match(name) {
                    is_known = true;
                    if !self.part(*part, value)? {
                        return Ok(false);
                    }
                }
            }
            if let Some(additional) = keywords.additional.filter(|_| !is_known)
                && !self.part(additional, value)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn branches(&mut self, keywords: &Keywords, value: &Value) -> Fits {
        for part in &keywords.all {
            if !self.part(*part, value)? {
                return Ok(false);
            }
        }
        if let Some(part) = keywords.not
            && self.part(part, value)?
        {
            return Ok(false);
        }
        // One match is enough for `anyOf`; a second match fails `oneOf`.
        for (branches, most) in [(&keywords.any, 1), (&keywords.one, 2)] {
            let Some(branches) = branches else { continue };
            let mut count = 0;
            for part in branches {
                count += usize::from(self.part(*part, value)?);
                if count == most {
                    break;
                }
            }
            if count != 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Equality of JSON values; numbers are compared by value.
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

/// A canonical text: two values have equal texts exactly when they are equal, up to the precision of floats.
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => {
            number.as_f64().map_or_else(|| number.to_string(), |float| (float + 0.0).to_string())
        }
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(canonical).collect();
            format!("[{}]", elements.join(","))
        }
        Value::Object(object) => {
            let mut members: Vec<String> = object
                .iter()
                .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), canonical(value)))
                .collect();
            members.sort_unstable();
            format!("{{{}}}", members.join(","))
        }
        other => other.to_string(),
    }
}
