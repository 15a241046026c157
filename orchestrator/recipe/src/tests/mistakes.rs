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
