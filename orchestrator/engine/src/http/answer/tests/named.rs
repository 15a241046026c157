//! Answers whose log-probabilities name their tokens.

use super::runs::{Token, generate, named};
use super::*;

/// Forty tokens of the generate endpoint. The log-probability of the token `wrong` names another token.
fn misnamed(wrong: u32) -> Value {
    let tokens: Vec<Token> = (0..40).map(|id| named(id, if id == wrong { 151_643 } else { id })).collect();
    serde_json::from_str(&generate(&tokens)).unwrap()
}

fn read_misnamed(body: &Value, chunk_bytes: usize) -> Result<CheckedAnswer, AnswerError> {
    read_in_chunks(body.to_string().as_bytes(), &tokens(&[5, 66, 151_643], 1, 60), chunk_bytes)
}

/// The answer with the members of its choice in the opposite order.
fn reversed(body: &Value) -> Value {
    let mut body = body.clone();
    let choice = body["choices"][0].as_object().unwrap();
    body["choices"][0] = choice.clone().into_iter().rev().collect::<serde_json::Map<_, _>>().into();
    body
}

#[test]
fn a_log_probability_of_another_token_is_refused_however_it_arrives() {
    for wrong in [0, 20, 39] {
        let refused = AnswerError::OtherToken { token: wrong as usize, id: wrong, named: 151_643 };
        for body in [misnamed(wrong), reversed(&misnamed(wrong))] {
            for chunk_bytes in [1, 97, usize::MAX] {
                assert_eq!(
                    read_misnamed(&body, chunk_bytes),
                    Err(refused.clone()),
                    "{wrong} by {chunk_bytes}"
                );
            }
        }
    }
    let words = read_misnamed(&misnamed(20), usize::MAX).unwrap_err().to_string();
    assert!(words.contains("token=20") && words.contains("id=151643") && words.contains("20"), "{words}");
}

#[test]
fn members_of_a_log_probability_may_have_any_order_and_the_id_may_be_missing() {
    let of = |token: &str| {
        let text = format!(
            r#"{{"prompt_token_ids":[5,6],"choices":[{{"token_ids":[7,8],"finish_reason":"stop","logprobs":{{
               "content":[{{"logprob":-0.5,"rank":1}},{token}]}}}}]}}"#
        );
        read_in_chunks(text.as_bytes(), &tokens(&[5, 6], 1, 4), usize::MAX)
    };
    assert!(of(r#"{"rank":1,"logprob":-0.5,"token_id":8}"#).is_ok());
    assert!(of(r#"{"token_id":null,"logprob":-0.5,"rank":1}"#).is_ok());
    let refused = Err(AnswerError::OtherToken { token: 1, id: 8, named: 7 });
    assert_eq!(of(r#"{"rank":1,"logprob":-0.5,"token_id":7}"#), refused);
    assert_eq!(of(r#"{"token_id":7,"rank":1,"logprob":-0.5}"#), refused);
    for no_id in ["\"8\"", "8.0", "-8", "true", "[8]", "08"] {
        let found = of(&format!(r#"{{"token_id":{no_id},"logprob":-0.5,"rank":1}}"#));
        assert!(matches!(found, Err(AnswerError::Shape { .. })), "{no_id}: {found:?}");
    }
}
