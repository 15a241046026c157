//! Compiles a schema from JSON, within the bounds.

use std::collections::{BTreeMap, VecDeque};

use num_traits::Signed;
use regex::Regex;
use serde_json::Value;

use super::{
    Bound, Id, Keywords, Part, SCHEMA_DEPTH_MAX, SCHEMA_KEYWORDS, SCHEMA_PATTERNS_MAX, Schema, Type, decimal,
};
use crate::RewardError;
use crate::scorer::pattern;

/// Compiles a schema; an error names the keyword and the reason.
pub(super) fn compile(whole: &Value) -> Result<Schema, RewardError> {
    let mut compiler =
        Compiler { whole, parts: Vec::new(), places: BTreeMap::new(), left: VecDeque::new(), patterns: 0 };
    compiler.reference("#")?;
    // The target of a reference is compiled later, because references can form cycles.
    while let Some((id, value)) = compiler.left.pop_front() {
        compiler.fill(id, value, 0)?;
    }
    Ok(Schema { parts: compiler.parts })
}

struct Compiler<'a> {
    whole: &'a Value,
    parts: Vec<Part>,
    /// The parts that references name; the keys are the references.
    places: BTreeMap<String, Id>,
    /// The parts in `places` that are not compiled yet.
    left: VecDeque<(Id, &'a Value)>,
    patterns: usize,
}

impl<'a> Compiler<'a> {
    fn reference(&mut self, reference: &str) -> Result<Id, RewardError> {
        if let Some(id) = self.places.get(reference) {
            return Ok(*id);
        }
        let invalid = |reason: &str| RewardError::invalid("schema $ref", reference, reason);
        let pointer = reference
            .strip_prefix('#')
            .filter(|pointer| pointer.is_empty() || pointer.starts_with('/'))
            .ok_or_else(|| invalid("expected # or #/ and a JSON pointer into the schema"))?;
        let whole = self.whole;
        let value =
            whole.pointer(pointer).ok_or_else(|| invalid("expected a pointer to a part of the schema"))?;
        let id = self.place();
        self.places.insert(reference.to_owned(), id);
        self.left.push_back((id, value));
        Ok(id)
    }

    /// Reserves a part, which is filled later.
    fn place(&mut self) -> Id {
        self.parts.push(Part::Never);
        self.parts.len() - 1
    }

    fn schema(&mut self, value: &'a Value, depth: usize) -> Result<Id, RewardError> {
        let id = self.place();
        self.fill(id, value, depth)?;
        Ok(id)
    }

    fn fill(&mut self, id: Id, value: &'a Value, depth: usize) -> Result<(), RewardError> {
        if depth > SCHEMA_DEPTH_MAX {
            let reason = format!("deeper than {SCHEMA_DEPTH_MAX} schemas");
            return Err(RewardError::invalid("schema", value, reason));
        }
        self.parts[id] = match value {
            Value::Bool(true) => Part::Any,
            Value::Bool(false) => Part::Never,
            Value::Object(object) => {
                let mut keywords = Keywords::default();
                for (keyword, argument) in object {
                    self.keyword(&mut keywords, keyword, argument, depth + 1)?;
                }
                Part::Keywords(Box::new(keywords))
            }
            other => return Err(RewardError::invalid("schema", other, "expected an object, true or false")),
        };
        Ok(())
    }

    /// Compiles a keyword; `depth` is the depth of the schemas inside this one.
    fn keyword(
        &mut self,
        keywords: &mut Keywords,
        keyword: &str,
        argument: &'a Value,
        depth: usize,
    ) -> Result<(), RewardError> {
        match keyword {
            "properties" => {
                for (name, property) in object(keyword, argument)? {
                    keywords.properties.insert(name.clone(), self.schema(property, depth)?);
                }
            }
            "patternProperties" => {
                for (name, property) in object(keyword, argument)? {
                    keywords.patterned.push((self.pattern(name)?, self.schema(property, depth)?));
                }
            }
            "additionalProperties" => keywords.additional = Some(self.schema(argument, depth)?),
            "items" => keywords.items = Some(self.schema(argument, depth)?),
            "prefixItems" => keywords.prefix = self.schemas(keyword, argument, depth)?,
            "allOf" => {
                let all = self.schemas(keyword, argument, depth)?;
                keywords.all.extend(all);
            }
            "anyOf" => keywords.any = Some(self.schemas(keyword, argument, depth)?),
            "oneOf" => keywords.one = Some(self.schemas(keyword, argument, depth)?),
            "not" => keywords.not = Some(self.schema(argument, depth)?),
            "$ref" => {
                let reference = argument.as_str().ok_or_else(|| expected("a string", keyword, argument))?;
                let id = self.reference(reference)?;
                keywords.all.push(id);
            }
            // These are compiled when a reference names them.
            "$defs" | "definitions" => drop(object(keyword, argument)?),
            "pattern" => {
                let text = argument.as_str().ok_or_else(|| expected("a string", keyword, argument))?;
                keywords.pattern = Some(self.pattern(text)?);
            }
            "title" | "description" | "default" | "examples" | "$schema" | "$id" | "$comment" => {}
            other => return plain_keyword(keywords, other, argument),
        }
        Ok(())
    }

    fn schemas(&mut self, keyword: &str, argument: &'a Value, depth: usize) -> Result<Vec<Id>, RewardError> {
        let schemas = argument.as_array().filter(|schemas| !schemas.is_empty());
        let schemas = schemas.ok_or_else(|| expected("an array of schemas", keyword, argument))?;
        schemas.iter().map(|schema| self.schema(schema, depth)).collect()
    }

    fn pattern(&mut self, text: &str) -> Result<Regex, RewardError> {
        self.patterns += 1;
        if self.patterns > SCHEMA_PATTERNS_MAX {
            let reason = format!("more than {SCHEMA_PATTERNS_MAX} patterns");
            return Err(RewardError::invalid("schema", text, reason));
        }
        pattern::compile(text)
    }
}

/// Compiles a keyword that contains no schema.
fn plain_keyword(keywords: &mut Keywords, keyword: &str, argument: &Value) -> Result<(), RewardError> {
    match keyword {
        "type" => keywords.types = Some(types(argument)?),
        "required" => keywords.required = names(argument)?,
        "enum" => {
            let members = argument.as_array().ok_or_else(|| expected("an array", keyword, argument))?;
            keywords.members = Some(members.clone());
        }
        "const" => keywords.constant = Some(argument.clone()),
        "minimum" => keywords.numbers.push(Bound::Least(number(keyword, argument)?)),
        "maximum" => keywords.numbers.push(Bound::Most(number(keyword, argument)?)),
        "exclusiveMinimum" => keywords.numbers.push(Bound::Above(number(keyword, argument)?)),
        "exclusiveMaximum" => keywords.numbers.push(Bound::Below(number(keyword, argument)?)),
        "multipleOf" => {
            let divisor = argument.as_number().and_then(decimal).filter(Signed::is_positive);
            keywords.divisor = Some(divisor.ok_or_else(|| expected("a number above 0", keyword, argument))?);
        }
        "minLength" => keywords.code_points.min = Some(count(keyword, argument)?),
        "maxLength" => keywords.code_points.max = Some(count(keyword, argument)?),
        "minItems" => keywords.elements.min = Some(count(keyword, argument)?),
        "maxItems" => keywords.elements.max = Some(count(keyword, argument)?),
        "minProperties" => keywords.count.min = Some(count(keyword, argument)?),
        "maxProperties" => keywords.count.max = Some(count(keyword, argument)?),
        "uniqueItems" => {
            keywords.has_unique_elements =
                argument.as_bool().ok_or_else(|| expected("true or false", keyword, argument))?;
        }
        _ => {
            let reason = format!("expected one of: {SCHEMA_KEYWORDS}");
            return Err(RewardError::invalid("schema keyword", keyword, reason));
        }
    }
    Ok(())
}

fn object<'a>(keyword: &str, argument: &'a Value) -> Result<&'a serde_json::Map<String, Value>, RewardError> {
    argument.as_object().ok_or_else(|| expected("an object", keyword, argument))
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
