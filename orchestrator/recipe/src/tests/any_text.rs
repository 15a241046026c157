//! No text of a recipe makes the loading of recipes panic.

use std::fs;

use proptest::prelude::*;

use super::*;

/// Loads a recipe of this repository with one value replaced. If it loads, its printed form must load and
/// print again as the same text. Texts are compared, because a NaN in the trainer's settings does not equal
/// itself.
fn load_altered(name: &str, line_at: usize, value: &str) {
    let text = fs::read_to_string(recipes().join(name)).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = line_at % lines.len();
    if let Some((key, _old)) = lines[at].clone().split_once('=') {
        lines[at] = format!("{key}= {value}");
    }
    if let Ok(recipe) = load_text(&lines.join("\n"), &LoadOptions::default()) {
        let printed = recipe.to_toml().unwrap();
        let again: Recipe = toml::from_str(&printed).unwrap();
        assert_eq!(again.to_toml().unwrap(), printed);
    }
}

proptest! {
    #[test]
    fn no_value_makes_it_panic(
        name in prop::sample::select(vec!["dapo_qwen3_8b.toml", "grpo_gsm8k.toml", "quickstart.toml"]),
        line_at in 0_usize..80,
        value in prop_oneof![
            any::<i64>().prop_map(|number| number.to_string()),
            any::<f64>().prop_map(|number| format!("{number:?}")),
            (-2_i64..3).prop_map(|number| number.to_string()),
            Just("[]".to_owned()),
            Just("{}".to_owned()),
            Just("\"\"".to_owned()),
            Just("nan".to_owned()),
            "\"[a-z_/:.]{0,12}\"",
        ],
    ) {
        load_altered(name, line_at, &value);
    }

    #[test]
    fn no_option_makes_it_panic(set in "[a-z_.= \"\\[\\]{}0-9\u{e9}]{0,30}") {
        let _ = load_text(MINIMAL, &LoadOptions { set: vec![set], ..Default::default() });
    }

    #[test]
    fn no_text_makes_it_panic(cut in 0..MINIMAL.len(), insert in ".{0,12}", length in 0_usize..20) {
        let end = (cut + length).min(MINIMAL.len());
        let text = format!("{}{insert}{}", &MINIMAL[..cut], &MINIMAL[end..]);
        let _ = load_text(&text, &LoadOptions::default()).map(|recipe| recipe.to_toml());
    }
}
