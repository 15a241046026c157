use fearless_simd::{Level, dispatch};
use proptest::prelude::*;

use super::*;

/// The text after a token. It is long enough to load a block within the token.
const REST: &str = "                                                                ";

fn token_of(text: &str) -> Option<((u32, f32), usize)> {
    read(format!("{text}{REST}").as_bytes())
}

fn read(bytes: &[u8]) -> Option<((u32, f32), usize)> {
    dispatch!(Level::new(), simd => token(simd, bytes, 0))
}

#[test]
fn the_forms_of_vllm_are_read() {
    let sampled = r#""token_id":150751,"logprob":-10.00468635559082,"rank":3485"#;
    let other = r#"{"token_id":11,"logprob":-1.1920928955078125e-07,"rank":1}"#;
    let alternatives = [
        String::new(),
        format!("{{{sampled}}}"),
        other.to_owned(),
        format!("{other},{{{sampled}}}"),
        format!("{{{sampled}}},{other}"),
        "{}".to_owned(),
    ];
    for alternatives in alternatives {
        let text = format!(r#"{{{sampled},"top_logprobs":[{alternatives}]}},"#);
        assert_eq!(token_of(&text), Some(((150_751, -10.004_686), text.len())), "{text}");
        for end in 0..text.len() {
            assert_eq!(token_of(&text[..end]), None, "{}", &text[..end]);
        }
    }
}

#[test]
fn other_forms_are_left_to_the_scanner() {
    for text in [
        r#"{"logprob":-0.5,"token_id":1,"rank":1,"top_logprobs":[]},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":null,"top_logprobs":[]},"#,
        r#"{"token_id":1,"logprob":null,"rank":1,"top_logprobs":[]},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":1,"top_logprobs":[,]},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":1,"top_logprobs":[{},]},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":1,"top_logprobs":[{"a":[]}]},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":1,"top_logprobs":[{"token_id":1,"logprob":-0.5,"rank":1]},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":1,"top_logprobs":[{"token_id":1,"logprob":-0.5,"rank":1}},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":1.5,"top_logprobs":[]},"#,
        r#"{"token_id":1,"logprob":-.5,"rank":1,"top_logprobs":[]},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":1,"top_logprobs":null},"#,
        r#"{"token_id":1,"logprob":-0.5,"rank":1,"top_logprobs":[]}]"#,
        r#"{"token_id":01,"logprob":-0.5,"rank":1,"top_logprobs":[]},"#,
        r#"{"token_id": 1,"logprob":-0.5,"rank":1,"top_logprobs":[]},"#,
    ] {
        assert_eq!(token_of(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn a_changed_byte_is_left_or_read_as_json_reads_it(
        id in 0_u32..200_000, logprob in -20.0_f32..0.0, at: prop::sample::Index, byte: u8, alternatives in 0_usize..3,
    ) {
        let member = format!(r#""token_id":{id},"logprob":{:?},"rank":7"#, f64::from(logprob));
        let repeated = vec![format!("{{{member}}}"); alternatives].join(",");
        let mut text = format!(r#"{{{member},"top_logprobs":[{repeated}]}},"#).into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        let padded = [&text[..], REST.as_bytes()].concat();
        if let Some(((named, found), length)) = read(&padded) {
            prop_assert_eq!(length, text.len());
            let written = String::from_utf8_lossy(&text).into_owned();
            let digits = written.split("\"token_id\":").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
            prop_assert_eq!(named.to_string(), digits);
            let number = written.split("\"logprob\":").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
            prop_assert_eq!(found.to_bits(), number.parse::<f32>().unwrap().to_bits());
        }
    }
}
