use futures::FutureExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::NumberGame;
use crate::{Action, Environment, EnvironmentError, Observation, Step, Task};

fn begun(seed: u64, fields: Value) -> Result<NumberGame, EnvironmentError> {
    let mut game = NumberGame::default();
    let task = Task { messages: Vec::new(), answer: String::new(), fields, seed };
    game.reset(&task).now_or_never().unwrap()?;
    Ok(game)
}

fn guess(game: &mut NumberGame, text: &str) -> (String, Step) {
    let step = game.step(Action { text, ids: &[] }).now_or_never().unwrap().unwrap();
    let Observation::Messages(messages) = &step.observation else { panic!() };
    (messages[0]["content"].as_str().unwrap().to_owned(), step)
}

#[test]
fn halving_finds_the_number_and_each_guess_is_worth_what_it_rules_out() {
    let mut game = begun(3, json!({ "largest": 16 })).unwrap();
    let (mut low, mut high) = (1, 16);
    let mut guesses = 0;
    loop {
        let middle = (low + high) / 2;
        let (answer, step) = guess(&mut game, &format!("is it 3? no: {middle}"));
        guesses += 1;
        let possible = f64::from(high - low + 1);
        match answer.as_str() {
            "Higher." => low = middle + 1,
            "Lower." => high = middle - 1,
            _ => {
                assert_eq!((answer.as_str(), step.is_done, step.reward), ("Right.", true, Some(1.0)));
                break;
            }
        }
        let expected = (1.0 - f64::from(high - low + 1) / possible) / 5.0;
        assert_eq!(step.reward, Some(expected as f32));
    }
    assert!(guesses <= 5);
    assert!(game.step(Action { text: "1", ids: &[] }).now_or_never().unwrap().is_err());
}

#[test]
fn guesses_that_rule_nothing_out_are_worth_nothing() {
    let mut game = begun(1, json!({})).unwrap();
    assert_eq!(guess(&mut game, "no idea").0, "Please say a whole number.");
    for text in ["101", "99999999999999999999999", "0"] {
        let (_, step) = guess(&mut game, text);
        assert_eq!((step.reward, step.is_done), (Some(0.0), false), "{text}");
    }
}

#[test]
fn rows_with_another_bound_than_a_number_are_refused() {
    for largest in [json!(1), json!("ten"), json!(10_000_000)] {
        let error = begun(0, json!({ "largest": largest })).unwrap_err();
        assert!(error.to_string().contains("a field largest"), "{error}");
    }
}

proptest! {
    #[test]
    fn any_guesses_keep_the_hidden_number_possible(seed: u64, guesses in prop::collection::vec(0_u32..130, 1..40)) {
        let mut game = begun(seed, json!({})).unwrap();
        let mut total = 0.0;
        for number in guesses {
            let (_, step) = guess(&mut game, &number.to_string());
            total += step.reward.unwrap();
            if step.is_done {
                break;
            }
        }
        prop_assert!((0.0..=2.0).contains(&total), "{total}");
    }
}
