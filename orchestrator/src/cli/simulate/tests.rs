use rolldock_simulate::sweep::Change;

use super::*;
use crate::recipe::LoadOptions;

/// A setting of the quickstart with a group in each step and this data set.
fn with_data(file: &str) -> Setting {
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../recipes/quickstart.toml");
    let change = Change { key: "data.train".to_owned(), value: file.to_owned() };
    let set = vec![format!("data.train={file}"), "rollout.train_batch_size=1".to_owned()];
    let options = LoadOptions { set, endpoints: Vec::new() };
    let recipe = Recipe::load_simulated(Path::new(recipe), &options).unwrap();
    Setting { changes: vec![change], recipe }
}

#[tokio::test]
async fn a_setting_that_fails_is_named_and_does_not_end_the_others() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/arithmetic/train.jsonl");
    let settings = ["absent.jsonl", data, "missing.jsonl"].map(with_data).to_vec();
    let terms = Terms { steps: 1, training: Default::default(), workload: Workload::Data };
    let (results, failures) = simulate_all(settings, &terms).await;
    let labels: Vec<String> = results.iter().map(|(setting, _)| setting.label()).collect();
    assert_eq!(labels, [format!("data.train={data}")]);
    let error = format!("{:#}", failed(failures));
    assert!(error.starts_with("2 settings failed:\nsetting data.train=absent.jsonl: "), "{error}");
    assert!(error.contains("\nsetting data.train=missing.jsonl: "), "{error}");
}
