//! `gsm8k`: compares the number after `####`, or the last number of the response.

use serde::{Deserialize, Serialize};

use super::{Score, ScoreInput, Scorer};
use crate::RewardError;
use crate::python_text::tail;

/// The number of code points at the end of a response that are read.
const TAIL: usize = 300;

/// The rule that selects which number of a response counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gsm8kMethod {
    /// The last number after `#### `.
    #[default]
    Strict,
    /// The last number.
    Flexible,
}

/// Compares the number with the ground truth as text; scores 1 or 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gsm8k {
    /// The rule that selects the number.
    pub method: Gsm8kMethod,
}

/// The longest run of `[0-9.,]+`, with an optional minus before it, at the start of `text`.
fn number_at(text: &str) -> Option<&str> {
    let sign = usize::from(text.starts_with('-'));
    let digits = text[sign..].bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b'.' | b',')).count();
    (digits > 0).then(|| &text[..sign + digits])
}

impl Gsm8k {
    /// The answer that a response gives.
    pub fn extract(&self, response: &str) -> Option<String> {
        let end = tail(response, TAIL);
        match self.method {
            Gsm8kMethod::Strict => {
                // The search runs from the right, so the first result is the last marker with a number behind
                // it.
                let mut found = end
                    .rmatch_indices("#### ")
                    .filter_map(|(at, marker)| number_at(&end[at + marker.len()..]));
                found.next().map(|number| number.replace(',', ""))
            }
            Gsm8kMethod::Flexible => {
                let numbers = numbers_in(end);
                let sound = numbers.iter().rev().find(|number| **number != ".");
                sound.or(numbers.first()).map(|number| (*number).to_owned())
            }
        }
    }
}

fn numbers_in(text: &str) -> Vec<&str> {
    let mut numbers = Vec::new();
    let mut at = 0;
    while let Some(step) = text[at..].find(|c: char| matches!(c, '-' | '0'..='9' | '.' | ',')) {
        at += step;
        match number_at(&text[at..]) {
            Some(number) => {
                numbers.push(number);
                at += number.len();
            }
            None => at += 1,
        }
    }
    numbers
}

impl Scorer for Gsm8k {
    fn name(&self) -> &'static str {
        "gsm8k"
    }

    fn tail_code_points(&self) -> Option<usize> {
        Some(TAIL)
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Score, RewardError> {
        let pred = self.extract(input.response);
        let right = pred.as_deref() == Some(input.ground_truth);
        Ok(Score::right_or_wrong(right, pred))
    }
}
