use std::fs;
use std::sync::{Arc, OnceLock};

use proptest::prelude::*;

use crate::{
    DataError, Dataset, DatasetConfig, DrawCounts, Duplicates, OverlongPrompts, Position, PromptSource,
    TextCodec,
};

fn codec() -> Arc<TextCodec> {
    static CODEC: OnceLock<Arc<TextCodec>> = OnceLock::new();
    Arc::clone(CODEC.get_or_init(|| Arc::new(TextCodec::builtin().unwrap())))
}

/// A data set whose row `i` has a prompt of `lengths[i]` digits and the answer `i`.
fn dataset(lengths: &[usize], change: impl FnOnce(&mut DatasetConfig)) -> Dataset {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.jsonl");
    let line = |(row, length): (usize, &usize)| {
        let digits = "7".repeat(*length);
        format!("{{\"prompt\":\"{digits}\",\"answer\":{row}}}\n")
    };
    fs::write(&file, lengths.iter().enumerate().map(line).collect::<String>()).unwrap();
    let mut config = DatasetConfig {
        files: vec![file],
        columns: None,
        max_prompt_length: 1_000,
        overlong_prompts: OverlongPrompts::Drop,
        duplicates: Duplicates::Keep,
        shuffle: true,
        seed: 42,
        epochs: None,
    };
    change(&mut config);
    Dataset::open(config).unwrap()
}

/// The rows of the next `count` prompts.
fn draw(source: &mut dyn PromptSource, count: usize) -> Vec<u64> {
    (0..count).map_while(|_| source.next().unwrap()).map(|prompt| prompt.row).collect()
}

/// Tokens that the template adds to a prompt.
fn frame() -> usize {
    let framed = dataset(&[1], |_| ()).measure(&codec()).unwrap();
    framed.max - 1
}

#[test]
fn every_epoch_has_every_row_in_a_new_order() {
    let mut cursor = dataset(&[1; 50], |_| ()).cursor(codec());
    let (first, second) = (draw(&mut cursor, 50), draw(&mut cursor, 50));
    assert_ne!(first, second);
    for mut epoch in [first, second] {
        epoch.sort_unstable();
        assert!(epoch.into_iter().eq(0..50));
    }
    let prompt = cursor.next().unwrap().unwrap();
    assert_eq!(prompt.visit, 2);
    assert_eq!(cursor.position(), Some(Position { epoch: 2, offset: 1 }));
}

#[test]
fn epochs_are_bounded_and_no_prompt_follows_the_end() {
    let mut cursor =
        dataset(&[1; 3], |config| (config.epochs, config.shuffle) = (Some(2), false)).cursor(codec());
    assert_eq!(draw(&mut cursor, 9), [0, 1, 2, 0, 1, 2]);
    assert!(cursor.next().unwrap().is_none());
    assert!(cursor.next().unwrap().is_none());
}

#[test]
fn a_pass_is_one_epoch_in_the_files_order() {
    let mut pass = dataset(&[1; 4], |_| ()).pass(codec());
    assert_eq!(draw(&mut pass, 9), [0, 1, 2, 3]);
}

#[test]
fn overlong_prompts_are_dropped_and_counted() {
    let limit = frame() + 5;
    let rows = dataset(&[5, 6, 1, 900], |config| {
        (config.max_prompt_length, config.shuffle, config.epochs) = (limit, false, Some(2));
    });
    assert_eq!(rows.measure(&codec()).unwrap().overlong, 2);
    let mut cursor = rows.cursor(codec());
    assert_eq!(draw(&mut cursor, 9), [0, 2, 0, 2]);
    let expected = DrawCounts { prompts: 4, overlong_dropped: 4, overlong_truncated: 0 };
    assert_eq!(cursor.drawn(), Some(expected));
}

#[test]
fn overlong_prompts_lose_their_first_tokens() {
    let limit = frame() + 5;
    let rows = dataset(&[1, 9], |config| {
        (config.max_prompt_length, config.shuffle) = (limit, false);
        config.overlong_prompts = OverlongPrompts::TruncateLeft;
    });
    let mut cursor = rows.cursor(codec());
    let short = cursor.next().unwrap().unwrap();
    let cut = cursor.next().unwrap().unwrap();
    assert_eq!((short.ids.len(), cut.ids.len()), (frame() + 1, limit));
    assert_eq!(cut.ids.last(), short.ids.last());
    assert!(cut.text.ends_with("7<|im_end|>\n<|im_start|>assistant\n"), "{}", cut.text);
    assert_eq!(codec().encode(&cut.text).unwrap(), *cut.ids);
    assert_eq!(cursor.drawn().unwrap().overlong_truncated, 1);
}

#[test]
fn overlong_prompts_end_the_run_if_the_recipe_asks_for_it() {
    let mut cursor = dataset(&[90], |config| {
        (config.max_prompt_length, config.overlong_prompts) = (50, OverlongPrompts::Error);
    })
    .cursor(codec());
    let error = cursor.next().unwrap_err();
    assert!(error.to_string().contains("more than data.max_prompt_length=50"), "{error}");
    assert_eq!(cursor.position(), Some(Position::default()));
}

#[test]
fn a_data_set_of_overlong_prompts_is_an_error_and_no_endless_loop() {
    let rows = dataset(&[90; 7], |config| config.max_prompt_length = 50);
    let mut cursor = rows.cursor(codec());
    let error = cursor.next().unwrap_err();
    assert!(matches!(error, DataError::AllOverlong { rows: 7, tokens_max: 50 }), "{error}");
    let mut resumed = rows.cursor(codec());
    resumed.seek(Position { epoch: 3, offset: 5 }).unwrap();
    assert!(matches!(resumed.next().unwrap_err(), DataError::AllOverlong { .. }));
}

#[test]
fn a_position_beyond_the_data_is_refused() {
    let mut cursor = dataset(&[1; 3], |_| ()).cursor(codec());
    let error = cursor.seek(Position { epoch: 0, offset: 4 }).unwrap_err();
    assert!(error.to_string().contains("the data may have changed since the run began"), "{error}");
}

#[test]
fn a_position_is_json() {
    let position = Position { epoch: 1, offset: 2 };
    let json = serde_json::to_string(&position).unwrap();
    assert_eq!(json, r#"{"epoch":1,"offset":2}"#);
    assert_eq!(serde_json::from_str::<Position>(&json).unwrap(), position);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever a run is cut off, the resumed cursor draws the same rows as the first cursor would have
    /// drawn.
    #[test]
    fn a_resumed_cursor_goes_on_as_the_first_would(
        lengths in prop::collection::vec(1_usize..30, 1..40),
        drawn in 0_usize..100,
        seed: u64,
    ) {
        let limit = frame() + 20;
        let rows = dataset(&lengths, |config| (config.max_prompt_length, config.seed) = (limit, seed));
        prop_assume!(lengths.iter().any(|length| *length <= 20));
        let mut whole = rows.cursor(codec());
        draw(&mut whole, drawn);
        let mut resumed = rows.cursor(codec());
        resumed.seek(whole.position().unwrap()).unwrap();
        for _ in 0..50 {
            let (one, other) = (whole.next().unwrap().unwrap(), resumed.next().unwrap().unwrap());
            prop_assert_eq!((one.uid, one.row, one.visit, one.ids), (other.uid, other.row, other.visit, other.ids));
        }
        prop_assert_eq!(whole.position(), resumed.position());
    }
}

#[test]
fn a_prompt_is_looked_up_without_a_draw() {
    let data = dataset(&[3, 4, 900, 6], |config| config.max_prompt_length = 100);
    let mut cursor = data.cursor(codec());
    let drawn: Vec<_> = (0..6).filter_map(|_| cursor.next().unwrap()).collect();
    let before = (cursor.position(), cursor.drawn());
    for prompt in &drawn {
        let found = cursor.fetch(prompt.row, prompt.visit).unwrap().unwrap();
        assert_eq!((found.uid, found.row, found.visit), (prompt.uid, prompt.row, prompt.visit));
        assert_eq!((&found.ids, &found.answer), (&prompt.ids, &prompt.answer));
    }
    let too_long = cursor.fetch(2, 0).unwrap_err();
    assert!(matches!(too_long, DataError::Overlong { row: 2, tokens_max: 100, .. }), "{too_long}");
    assert!(matches!(cursor.fetch(4, 1), Err(DataError::Position { offset: 4, rows: 4, .. })));
    assert_eq!((cursor.position(), cursor.drawn()), before);
}
