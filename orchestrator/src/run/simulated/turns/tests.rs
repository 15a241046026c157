use super::{call, guess, last_number, result_in};

const BEGUN: &str = "<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n";

#[test]
fn a_call_is_worth_the_number_that_the_model_has_in_mind() {
    for seed in 0..50 {
        let text = call("528", seed);
        let (_, expression) = text.split_once("\"expression\":\"").unwrap();
        let (left, right) = expression.split_once('"').unwrap().0.split_once(" + ").unwrap();
        assert_eq!(left.parse::<i64>().unwrap() + right.parse::<i64>().unwrap(), 528, "{text}");
    }
    assert!(call("1/3", 0).contains("\"1/3\""), "{}", call("1/3", 0));
}

#[test]
fn the_last_result_of_a_tool_is_read() {
    assert_eq!(result_in(BEGUN), None);
    let twice = "<tool_response>\n1\n</tool_response>x<tool_response>\n14\n</tool_response><|im_end|>";
    assert_eq!(result_in(twice), Some("14"));
}

#[test]
fn guesses_respect_what_the_game_has_said() {
    let told = |turns: &[(u32, &str)]| {
        let turn = |(number, answer): &(u32, &str)| {
            format!("w {number}<|im_end|>\n<|im_start|>user\n{answer}<|im_end|>\n<|im_start|>assistant\n")
        };
        BEGUN.to_owned() + &turns.iter().map(turn).collect::<String>()
    };
    for seed in 0..200 {
        let number = |text: &str| last_number(&guess(text, seed)).unwrap();
        assert!((1..=100).contains(&number(BEGUN)));
        assert!((51..=79).contains(&number(&told(&[(50, "Higher."), (80, "Lower.")]))));
        assert_eq!(number(&told(&[(98, "Higher."), (100, "Lower.")])), 99);
    }
}
