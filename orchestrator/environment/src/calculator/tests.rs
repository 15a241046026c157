use futures::FutureExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::expression::{evaluate, shown};
use super::{CALLS_MAX, Calculator};
use crate::{Action, Environment, EnvironmentError, Observation, Step, Task};

fn task(answer: &str) -> Task {
    Task {
        messages: vec![json!({ "role": "user", "content": "?" })],
        answer: answer.to_owned(),
        fields: Value::Null,
        seed: 0,
    }
}

fn step(calculator: &mut Calculator, text: &str) -> Step {
    calculator.step(Action { text, ids: &[] }).now_or_never().unwrap().unwrap()
}

fn begun(answer: &str) -> Calculator {
    let mut calculator = Calculator::default();
    let begun = calculator.reset(&task(answer)).now_or_never().unwrap().unwrap();
    assert_eq!(begun.tools.unwrap()[0]["function"]["name"], "calculator");
    calculator
}

/// The contents of the tool messages that answer a turn.
fn results(text: &str) -> Vec<String> {
    let step = step(&mut begun("1"), text);
    assert!(!step.is_done && step.reward.is_none());
    let Observation::Messages(messages) = step.observation else { panic!() };
    assert!(messages.iter().all(|message| message["role"] == "tool"));
    messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

fn call(expression: &str) -> String {
    let call = json!({ "name": "calculator", "arguments": { "expression": expression } });
    format!("<tool_call>\n{call}\n</tool_call>")
}

#[test]
fn expressions_by_hand() {
    for (expression, expected) in [
        ("2 * (3 + 4)", "14"),
        ("1 - 2 - 3", "-4"),
        ("8 / 4 / 2", "1"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 3", "1/3"),
        ("-(2 − 5) × 2", "6"),
        ("10 ÷ 4", "2.5"),
        ("-1 / 8", "-0.125"),
        ("99999999999999999999 * 10", "999999999999999999990"),
        (".5 + 5.", "5.5"),
    ] {
        assert_eq!(shown(&evaluate(expression).unwrap()), expected, "{expression}");
    }
    for (expression, expected) in [
        ("1 / (2 - 2)", "division by zero"),
        ("1 +", "expected a number at byte 3"),
        ("(1", "expected a closing parenthesis"),
        ("1 2", "expected an operator at byte 2"),
        ("2 ^ 3", "expected an operator"),
        (&"(".repeat(100), "levels"),
    ] {
        let reason = evaluate(expression).unwrap_err();
        assert!(reason.contains(expected), "{expression}: {reason}");
    }
}

#[test]
fn calls_get_results_and_wrong_calls_get_reasons() {
    assert_eq!(results(&format!("so {} and {}", call("1+1"), call("2*3"))), ["2", "6"]);
    assert_eq!(
        results("<tool_call>{\"name\": \"calculator\"")[0],
        "error: expected a call that is a JSON object"
    );
    assert!(results("<tool_call>{\"name\": \"search\"}</tool_call>")[0].contains("unknown tool=\"search\""));
    assert!(results("<tool_call>{\"name\": \"calculator\"}</tool_call>")[0].contains("expected arguments"));
    assert!(results(&call(&"1".repeat(2_000)))[0].contains("at most 1024 bytes"));
    let many = results(&call("1").repeat(CALLS_MAX + 3));
    assert_eq!(
        (many.len(), many[CALLS_MAX].as_str()),
        (CALLS_MAX + 1, "error: expected at most 8 calls in a turn")
    );
}

#[test]
fn the_last_number_is_the_answer() {
    for (answer, text, reward) in [
        ("42", "It is 42.", 1.0),
        ("42", "It is 41.", 0.0),
        ("42", "no idea", 0.0),
        ("0.5", "1/2", 1.0),
        ("-3", "Answer: -3", 1.0),
        ("7", "first 8, then 7.0", 1.0),
        ("7", "7/0", 0.0),
        ("1234", "It is $1,234.", 1.0),
        ("1234567.5", "1,234,567.5 in all", 1.0),
        ("-1234", "-1,234", 1.0),
        ("0", "1,000", 0.0),
        ("-3", "Answer: −3", 1.0),
        ("3", "(1, 2,3)", 1.0),
        ("5678", "1234,5678", 1.0),
        ("5", "5, I think,", 1.0),
        // A number of this length is not read, so the one before it counts.
        ("3", &format!("3, or 0.{}", "1".repeat(2_000)), 1.0),
    ] {
        let step = step(&mut begun(answer), text);
        assert_eq!((step.reward, step.is_done), (Some(reward), true), "{text}");
    }
}

#[test]
fn rows_without_a_number_and_steps_behind_the_end_are_errors() {
    let mut calculator = Calculator::default();
    let error = calculator.reset(&task("many")).now_or_never().unwrap().unwrap_err();
    assert!(
        matches!(error, EnvironmentError::Task { .. }) && error.to_string().contains("\"many\""),
        "{error}"
    );
    let mut calculator = begun("1");
    step(&mut calculator, "1");
    let late = calculator.step(Action { text: "1", ids: &[] }).now_or_never().unwrap();
    assert!(matches!(late, Err(EnvironmentError::Failed { .. })));
}

proptest! {
    #[test]
    fn sums_and_products_are_those_of_integers(a in -999_i64..999, b in -999_i64..999, c in 1_i64..99) {
        let value = evaluate(&format!("({a} + {b}) * {c} - {b} / 1")).unwrap();
        prop_assert_eq!(shown(&value), ((a + b) * c - b).to_string());
    }

    #[test]
    fn any_text_is_answered(text in "\\PC{0,80}|(<tool_call>|[0-9+*/().-]|\\{\"name\": \"calculator\"\\}){0,30}") {
        let _ = evaluate(&text);
        step(&mut begun("1"), &text);
    }
}
