//! The texts of errors: each mistake is described correctly, and all mistakes are reported together.

use super::{LoadOptions, MINIMAL, complaint, load_text};

fn refused(sets: &[&str]) -> String {
    let set = sets.iter().map(|set| (*set).to_owned()).collect();
    load_text(MINIMAL, &LoadOptions { set, ..Default::default() }).unwrap_err()
}

#[test]
fn an_empty_recipe_is_called_empty() {
    for text in ["", "\n# only a remark\n"] {
        let error = complaint(text);
        assert!(
            error.ends_with("it is empty; expected the tables [model], [data], [fleet] and [rollout]"),
            "{error}"
        );
    }
    let set = vec!["run.steps=3".to_owned()];
    let error = load_text("", &LoadOptions { set, ..Default::default() }).unwrap_err();
    assert!(error.contains("it is empty"), "{error}");
    assert_eq!(
        complaint("[model]\nname = \"m\"\ntokenizer = \"builtin\"\n"),
        "r.toml: `data`: missing table [data]"
    );
}

#[test]
fn a_huge_number_is_called_too_large() {
    let written = complaint(&format!("{MINIMAL}workers = 99999999999999999999\n"));
    let typed = refused(&["rollout.workers=99999999999999999999"]);
    for error in [written, typed] {
        assert!(
            error.contains("the number does not fit into 64 bits; expected a whole number from -9"),
            "{error}"
        );
        assert!(!error.contains("string"), "{error}");
    }
    let error = refused(&["rollout.samples_per_prompt=5000000000"]);
    assert!(error.contains("integer `5000000000`, expected a whole number from 0 to 4294967295"), "{error}");
}

#[test]
fn no_message_has_names_of_rust_types() {
    for (set, words) in [
        ("rollout=3", "`rollout`: invalid type: integer `3`, expected a table"),
        (
            "rollout.workers=[1]",
            "`rollout.workers`: invalid type: a list, expected a whole number, 0 or more",
        ),
        ("queue.tasks=train", "`queue.tasks`: invalid type: string \"train\", expected a list"),
        ("filter.enable=1", "`filter.enable`: invalid type: integer `1`, expected true or false"),
        ("data.train=3", "`data.train`: expected a file name or a list of file names"),
        ("policy.listen=localhost", "for example \"127.0.0.1:7401\", found \"localhost\""),
        ("queue.listen=7070", "`queue.listen`: invalid type: integer `7070`, expected a string"),
        ("report.listen=localhost", "\"127.0.0.1:9400\", or \"off\", found \"localhost\""),
        ("queue.listen=localhost", "for example \"127.0.0.1:7070\", found \"localhost\""),
        (
            "fleet.max_loads_per_server=3.5",
            "`fleet.max_loads_per_server`: expected a number of samples, or \"auto\"",
        ),
        ("policy.mode=async", "did you mean `fully_async`?"),
    ] {
        let error = refused(&[set]);
        assert!(error.contains(words), "{set}: {error}");
        for foreign in ["struct", "Some(", "enum", "usize", "variant of", "sequence"] {
            assert!(!error.contains(foreign), "{set}: {foreign} in {error}");
        }
    }
}

#[test]
fn a_value_in_place_of_a_word_is_told_which_words_there_are() {
    let fill = "expected `samples` or `groups`";
    let launch = "expected `batch` or `on_demand`";
    for (set, found, expected) in [
        ("rollout.fill=3", "integer `3`", fill),
        ("rollout.stragglers=true", "boolean `true`", "expected one of `stay`, `move`, `hedge`"),
        ("fleet.policy=1.5", "floating point `1.5`", "expected one of `least_load`, "),
        (
            "policy.mode=false",
            "boolean `false`",
            "expected one of `off`, `sync`, `one_step_off`, `fully_async`",
        ),
        ("rollout.early_stop=[]", "a list", "expected one of `first`, `fifo`, `off`"),
        ("run.on_short=2024-01-01", "date", "expected `short` or `error`"),
        ("queue.durability=2", "integer `2`", "expected one of "),
        ("data.history.sampling=1", "integer `1`", "expected "),
        ("data.duplicates=1", "integer `1`", "expected "),
        ("rollout.launch={}", "a table", launch),
        ("rollout.launch={on_demand=[]}", "a table", launch),
        ("rollout.launch={batch=1, on_demand=1}", "a table", launch),
        ("fleet.policy={group_affinity=1}", "a table", "expected one of `least_load`, "),
        ("rollout.fill={groups={}}", "a table", fill),
        ("reward.guard.on_failure=0", "integer `0`", "expected one of `fail_sample`, `score`, `stop`"),
        ("reward.guard.on_failure=score", "string \"score\"", "expected a table, { score = ... }"),
        ("reward.guard.on_failure={stop=0}", "a table", "expected one of `fail_sample`, `score`, `stop`"),
    ] {
        let error = refused(&[set]);
        let key = set.split('=').next().unwrap();
        let words = format!("--set {set}:1:{}: `{key}`: invalid type: {found}, {expected}", key.len() + 4);
        assert!(error.contains(&words), "{set}: {error}");
        assert_eq!(error.matches("--set").count(), 1, "{error}");
        assert!(!error.contains("variant"), "{error}");
    }
    let written = complaint(&MINIMAL.replace("mode = \"off\"", "mode = 7"));
    assert!(
        written.starts_with("r.toml:3:8: `policy.mode`: invalid type: integer `7`, expected one of"),
        "{written}"
    );
    let scored = ["reward.guard.on_failure={score=0.5}", "reward.scorer=math_dapo", "reward.python=a.py:f"];
    let set = scored.map(str::to_owned).to_vec();
    load_text(MINIMAL, &LoadOptions { set, ..Default::default() }).unwrap();
    // A misspelt word still has a suggestion.
    assert!(refused(&["rollout.fill=group"]).contains("did you mean `groups`?"));
}

#[test]
fn mistakes_of_different_kinds_are_all_named() {
    let error = refused(&[
        "rollout.wrokers=3",
        "policy.mode=async",
        "base=other.toml",
        "queue.capacity_rows=many",
        "rollout.max_gen_batches=0",
    ]);
    for words in [
        "`rollout.wrokers`: unknown field",
        "`policy.mode`: unknown variant",
        "`base`: a base can only be named in a file",
        "`queue.capacity_rows`: invalid type",
        "`rollout.max_gen_batches`: expected 1 to 65536, found 0 (checked without the values above)",
    ] {
        assert_eq!(error.matches(words).count(), 1, "{words} in\n{error}");
    }
}

#[test]
fn a_value_that_is_left_out_makes_no_further_mistake() {
    const CONSUMER: &str = "[queue.consumer]\ntask = \"train\"\ntake_groups = 1\nkeep_last_steps = 1\n";
    for (text, complaints) in [
        // The key is required, so it is missing when the rest is read.
        (MINIMAL.replace("train_batch_size = 8", "train_batch_size = \"8\""), 1),
        (format!("{MINIMAL}[validation]\nevery_steps = \"3\"\nsamples_per_prompt = 1\n"), 1),
        // Another value needs the key.
        (MINIMAL.replace("run.steps = 1", "run.steps = -1") + CONSUMER, 1),
        // The default of the key would not fit.
        (MINIMAL.replace("run.steps = 1", "run.steps = 100000") + "[queue]\ncapacity_rows = \"9\"\n", 1),
        (format!("{MINIMAL}[filter]\ngates = [{{ gate = \"nope\" }}, {{ gate = \"nope\" }}]\n"), 1),
        (MINIMAL.replace("name = \"m\"", "nome = 3").replace("samples_per_prompt = 4", "samples = 4"), 4),
    ] {
        let error = complaint(&text);
        assert_eq!(error.matches("r.toml:").count(), complaints, "{error}");
    }
}
