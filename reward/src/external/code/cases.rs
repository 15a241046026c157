//! Reads unit tests from a row's `ground_truth`, in the shapes that data sets use.
//!
//! | shape | tests |
//! |---|---|
//! | `{"inputs": [..], "outputs": [..]}` | programs: standard input and output, one pair per test |
//! | the shape above with `"fn_name"` | calls: the arguments and the expected result, one pair per test |
//! | `[{"input": .., "output": .., "testtype": ..}, ..]` | a call if `testtype` is `functional`, otherwise a program |
//! | `{"functional": ".."}` | one test: Python that runs after the candidate; an exception fails the test |
//! | `["..", ..]` | one test per text if all texts begin with `assert`; one test of the joined texts if some contain it |
//! | text with an `assert` in it | one test |
//!
//! A JSON string is parsed once more, because some data sets encode twice. If the input or output of a
//! program is a list, its items are the lines. Numbers count as texts.
//!
//! The arguments of a call are a list, or a text with one JSON value per line. Any other value is the only argument. If
//! the arguments are a text, and the result is a text that contains JSON, that JSON is the result. `testtype` may be
//! absent, `stdin`, `stdin_stdout` or `functional`; the last needs `metadata.func_name`.
//!
//! # Deliberately absent
//! `unittest` and `pytest` are not supported: a test that ends the interpreter cannot be distinguished from a
//! candidate that ends it.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::RewardError;

/// Maximum number of tests of a row.
pub(super) const CASES_MAX: usize = 1 << 14;
/// Maximum number of layers of JSON: a JSON string, and the JSON in it.
const LAYERS_MAX: usize = 2;
/// The name of the field in errors.
const WHAT: &str = "ground_truth";
/// The error for a text of another shape.
const SHAPES: &str = "expected unit tests: {\"inputs\", \"outputs\"}, {\"functional\"}, \
                      a list of {\"input\", \"output\"}, or assertions";

/// One test.
#[derive(Debug)]
pub(super) enum Case {
    /// Runs a whole program.
    Program {
        /// The standard input.
        input: String,
        /// The expected standard output.
        output: String,
    },
    /// Calls a function, or a method of `Solution`.
    Call {
        /// The name of the function.
        name: String,
        /// The arguments as a JSON list.
        arguments: Box<RawValue>,
        /// The expected result.
        expected: Box<RawValue>,
    },
    /// Runs Python after the candidate.
    Check(String),
}

#[derive(Deserialize)]
struct ObjectForm {
    inputs: Option<Vec<Box<RawValue>>>,
    outputs: Option<Vec<Box<RawValue>>>,
    fn_name: Option<String>,
    functional: Option<String>,
}

#[derive(Deserialize)]
struct ListItem {
    input: Box<RawValue>,
    output: Box<RawValue>,
    testtype: Option<String>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    func_name: Option<String>,
}

/// Reads the tests of a row. A `ground_truth` without tests is an error. If it has none of the shapes, the error lists
/// them.
pub(super) fn read(ground_truth: &str) -> Result<Vec<Case>, RewardError> {
    let cases = read_layer(ground_truth, LAYERS_MAX).map_err(|reason| wrong(ground_truth, reason))?;
    match cases.len() {
        0 => Err(wrong(ground_truth, "expected at least one test".into())),
        1..=CASES_MAX => Ok(cases),
        more => Err(wrong(ground_truth, format!("expected at most {CASES_MAX} tests, found {more}"))),
    }
}

fn wrong(ground_truth: &str, reason: String) -> RewardError {
    RewardError::invalid(WHAT, ground_truth, reason)
}

fn read_layer(text: &str, layers: usize) -> Result<Vec<Case>, String> {
    let not_json = |error: serde_json::Error| format!("{SHAPES} ({error})");
    let text = text.trim();
    match text.as_bytes().first() {
        Some(b'{') => of_object(serde_json::from_str(text).map_err(not_json)?),
        Some(b'[') => of_list(serde_json::from_str(text).map_err(not_json)?),
        Some(b'"') if layers > 1 => {
            let inner: String = serde_json::from_str(text).map_err(not_json)?;
            read_layer(&inner, layers - 1)
        }
        // As Python, this would be a literal, which every candidate passes.
        Some(b'"') if serde_json::from_str::<&RawValue>(text).is_ok() => {
            Err(format!("expected unit tests that are encoded as JSON at most {LAYERS_MAX} times"))
        }
        _ if text.contains("assert") => Ok(vec![Case::Check(text.to_owned())]),
        _ => Err(SHAPES.to_owned()),
    }
}

fn of_object(object: ObjectForm) -> Result<Vec<Case>, String> {
    let (inputs, outputs) = match (object.inputs, object.outputs, object.functional) {
        (Some(inputs), Some(outputs), None) => (inputs, outputs),
        (None, None, Some(tests)) => return Ok(vec![Case::Check(tests)]),
        _ => return Err(SHAPES.to_owned()),
    };
    if inputs.len() != outputs.len() {
        return Err(format!(
            "expected as many outputs as inputs, found inputs={} outputs={}",
            inputs.len(),
            outputs.len()
        ));
    }
    let name = object.fn_name.filter(|name| !name.is_empty());
    let pairs = inputs.into_iter().zip(outputs);
    pairs.map(|(input, output)| case_of(name.as_deref(), &input, output)).collect()
}

fn of_list(list: Vec<Box<RawValue>>) -> Result<Vec<Case>, String> {
    if list.iter().all(|item| item.get().starts_with('"')) {
        let texts: Result<Vec<String>, _> =
            list.iter().map(|item| serde_json::from_str(item.get())).collect();
        let texts = texts.map_err(|error| error.to_string())?;
        if texts.iter().all(|text| text.trim_start().starts_with("assert")) {
            return Ok(texts.into_iter().map(Case::Check).collect());
        }
        // Some texts only define helpers. As separate tests they would always pass.
        return match texts.iter().any(|text| text.contains("assert")) {
            true => Ok(vec![Case::Check(texts.join("\n"))]),
            false => Err(SHAPES.to_owned()),
        };
    }
    list.into_iter().map(|item| of_item(&item)).collect()
}

fn of_item(json: &RawValue) -> Result<Case, String> {
    let item: ListItem = serde_json::from_str(json.get()).map_err(|error| format!("{SHAPES} ({error})"))?;
    let name = match item.testtype.as_deref() {
        None | Some("stdin" | "stdin_stdout") => None,
        Some("functional") => {
            let name = item.metadata.and_then(|metadata| metadata.func_name);
            Some(name.ok_or("expected metadata.func_name with testtype=functional")?)
        }
        Some(other) => return Err(format!("expected testtype stdin or functional, found {other:?}")),
    };
    case_of(name.as_deref(), &item.input, item.output)
}

fn case_of(name: Option<&str>, input: &RawValue, output: Box<RawValue>) -> Result<Case, String> {
    let Some(name) = name else {
        return Ok(Case::Program { input: text_of(input)?, output: text_of(&output)? });
    };
    let is_lines = input.get().starts_with('"');
    let arguments = match input.get().as_bytes().first() {
        Some(b'"') => arguments_of_lines(&text_of(input)?)?,
        Some(b'[') => input.get().to_owned(),
        _ => format!("[{}]", input.get()),
    };
    // With arguments in lines, the result is JSON in a text too. Otherwise the text itself is the result.
    let inner = match is_lines && output.get().starts_with('"') {
        true => RawValue::from_string(text_of(&output)?.trim().to_owned()).ok(),
        false => None,
    };
    let arguments = RawValue::from_string(arguments).map_err(|error| error.to_string())?;
    Ok(Case::Call { name: name.to_owned(), arguments, expected: inner.unwrap_or(output) })
}

/// Reads one JSON value per line; returns them as a JSON list.
fn arguments_of_lines(text: &str) -> Result<String, String> {
    let mut arguments = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let argument: &RawValue = serde_json::from_str(line).map_err(|error| {
            format!("expected the argument {:?} to be JSON ({error})", super::excerpt(line))
        })?;
        arguments.push(argument.get());
    }
    Ok(format!("[{}]", arguments.join(",")))
}

/// The text of a JSON string or number. The items of a list become lines.
fn text_of(value: &RawValue) -> Result<String, String> {
    let text = value.get();
    let wrong = || format!("expected a text, a number or a list of these, found {:?}", super::excerpt(text));
    match text.as_bytes().first() {
        Some(b'"') => serde_json::from_str(text).map_err(|_| wrong()),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| wrong())?;
            let lines = items.into_iter().map(|item| match item.get().as_bytes().first() {
                Some(b'[' | b'{') => Err(wrong()),
                _ => text_of(item),
            });
            Ok(lines.collect::<Result<Vec<String>, String>>()?.join("\n"))
        }
        Some(b'-' | b'0'..=b'9') => Ok(text.to_owned()),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests;
