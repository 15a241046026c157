//! Simulations of small recipes, compared with what is known of them without a rollout.

use std::path::PathBuf;

use super::*;
use crate::recipe::LoadOptions;

/// A step of 8 groups of 4 samples, on two servers that hold all of them.
const RECIPE: &str = r#"
[model]
name = "m"
tokenizer = "builtin"
[data]
train = "absent.jsonl"
[fleet]
endpoints = ["http://a:1", "http://b:1"]
[rollout]
workers = 2
max_concurrent_prompts = 4
samples_per_prompt = 4
train_batch_size = 8
gen_batch_size = 16
max_gen_batches = 20
max_response_length = 500
[policy]
mode = "off"
"#;

fn setting(set: &[&str]) -> Setting {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("recipe.toml");
    std::fs::write(&path, RECIPE).unwrap();
    let set = set.iter().map(|change| (*change).to_owned()).collect();
    let recipe = Recipe::load_simulated(&path, &LoadOptions { set, endpoints: Vec::new() }).unwrap();
    Setting { changes: Vec::new(), recipe }
}

const TERMS: Terms = Terms { steps: 4, training: Duration::ZERO, workload: Workload::Prompts(32) };

fn run(set: &[&str], terms: &Terms) -> Outcome {
    simulate(&setting(set), terms).unwrap()
}

#[test]
fn a_simulated_fleet_replaces_the_servers_of_the_recipe() {
    let simulated = setting(&[]).recipe.fleet.simulated.unwrap();
    assert_eq!((simulated.servers, simulated.mean_response_length), (2, 100.0));
    let simulated = setting(&["fleet.simulated.servers=5"]).recipe.fleet.simulated.unwrap();
    assert_eq!((simulated.servers, simulated.mean_response_length), (5, 100.0));
}

#[test]
fn dispatch_order_is_unbiased_and_no_step_beats_its_bound() {
    let outcome = run(&["rollout.early_stop=fifo"], &TERMS);
    assert_eq!(outcome.steps, 4);
    let bias = outcome.length_bias.unwrap();
    assert_eq!((bias.value, outcome.accuracy_bias.unwrap().value), (1.0, 1.0), "{outcome:?}");
    assert!(outcome.over_fifo().unwrap() > 1.0 && outcome.over_saturation().unwrap() > 1.0, "{outcome:?}");
    // A simulated server of speed 1 needs at least 5.5 ms for a token, and no response has more than 500
    // tokens.
    assert!(outcome.fifo_bound_s.unwrap() < 500.0 * 0.0058 + 1.0, "{outcome:?}");
    assert!(outcome.requests.as_ref().is_some_and(|kept| kept.requests.len() >= 32), "{outcome:?}");
}

#[test]
fn ids_that_end_real_responses_do_not_end_simulated_ones() {
    let stops: Vec<u32> = (0..150_000).step_by(50).collect();
    let stopped = run(&[&format!("rollout.sampling.stop_token_ids={stops:?}")], &TERMS);
    assert_eq!(stopped.length_bias.unwrap().value, 1.0, "{stopped:?}");
    assert_eq!(stopped.times.step_s, run(&[], &TERMS).times.step_s);
}

/// Half of the groups are too long. With few generation batches, steps accept some of them.
#[test]
fn groups_that_are_kept_for_a_short_step_leave_no_reference() {
    let set = [
        r#"filter.gates=[{gate="length",name="too_long",mean_tokens_max=90.0}]"#,
        r#"filter.keep_if_short=["too_long"]"#,
        "rollout.early_stop=fifo",
    ];
    let plenty = run(&set, &TERMS);
    assert_eq!((plenty.kept_if_short, plenty.length_bias.unwrap().value), (0, 1.0), "{plenty:?}");
    assert!(plenty.fifo_bound_s.is_some());
    let few = [&set[..], &["rollout.gen_batch_size=8", "rollout.max_gen_batches=4"]].concat();
    for mode in ["off", "sync"] {
        let short = run(&[&few[..], &[&format!("policy.mode={mode}")]].concat(), &TERMS);
        assert!(short.steps == 4 && short.kept_if_short > 0, "{short:?}");
        assert_eq!((short.length_bias, short.accuracy_bias), (None, None));
        assert_eq!((short.over_fifo(), short.over_saturation()), (None, None));
        let text = json(&[(setting(&few), short)]).unwrap();
        assert!(text.contains(r#""kept_if_short""#) && text.contains(r#""length_bias": null"#), "{text}");
    }
}

/// A high bound stops most groups, and the step is shorter. The column shows what the weights of the others cost.
#[test]
fn a_setting_that_weights_groups_shows_how_many_equal_groups_they_are_worth() {
    let base = ["rollout.samples_per_prompt=8", "rollout.max_gen_batches=100"];
    let of = |below: Option<f64>| {
        let rule = below.map(|below| format!("rollout.stop_unlikely.below={below}"));
        let set: Vec<&str> = base.into_iter().chain(rule.as_deref()).collect();
        (setting(&set), run(&set, &TERMS))
    };
    let [without, low, high] = [None, Some(0.05), Some(0.6)].map(of);
    assert_eq!(without.1.effective_groups, None);
    let [low_share, high_share] = [&low, &high].map(|(_, outcome)| outcome.effective_groups.unwrap());
    assert!(high_share < 0.9 && high_share < low_share && low_share <= 1.0, "{low_share} {high_share}");
    assert!(!table(std::slice::from_ref(&without)).contains("effective groups"));
    let text = table(&[without, high.clone()]);
    let cell = |line: usize, column: &str| {
        let cells = |line: usize| text.lines().nth(line).unwrap().split('|').map(str::trim);
        let at = cells(0).position(|name| name == column).unwrap();
        cells(line).nth(at).unwrap().to_owned()
    };
    assert_eq!(cell(2, "effective groups"), "-");
    assert_eq!(cell(3, "effective groups"), format!("{high_share:.2}"));
    assert_eq!(cell(3, "preempted"), "0", "the cells are below their columns");
    assert!(json(&[high]).unwrap().contains(r#""effective_groups": 0."#));
}

#[test]
fn the_first_groups_to_end_are_short() {
    let set = ["rollout.early_stop=first", "rollout.on_stop=discard", "rollout.max_concurrent_prompts=16"];
    let terms = Terms { steps: 8, ..TERMS };
    let first = run(&set, &terms);
    assert!(first.length_bias.unwrap().value < 0.97, "{first:?}");
    assert!(first.waste > 0.02, "{first:?}");
    assert!(first.length_bias.unwrap().standard_error.unwrap() > 0.0);
}

#[test]
fn equal_settings_give_equal_outcomes() {
    for mode in ["off", "fully_async"] {
        let set = [&*format!("policy.mode={mode}"), "fleet.simulated.speeds=[1.0, 0.5]"];
        let [one, other] = [run(&set, &TERMS), run(&set, &TERMS)];
        let text = |outcome: Outcome| json(&[(setting(&set), outcome)]).unwrap();
        assert_eq!(text(one), text(other), "{mode}");
    }
}

#[test]
fn a_faster_fleet_is_faster_and_a_swept_key_is_the_key_of_the_recipe() {
    let slow = run(&["fleet.simulated.speeds=[0.25, 0.25]"], &TERMS);
    let fast = run(&[], &TERMS);
    let ratio = slow.times.step_s / fast.times.step_s;
    assert!((ratio - 4.0).abs() < 0.2, "{ratio}");
}

#[test]
fn a_trainer_is_waited_for_in_sync_and_not_in_fully_async() {
    let terms = Terms { steps: 6, training: Duration::from_secs(30), ..TERMS };
    let alone = run(&["policy.mode=sync"], &TERMS);
    let sync = run(&["policy.mode=sync"], &terms);
    let waits = sync.times.step_s - sync.times.rollout_s.unwrap();
    assert!((waits - 30.0).abs() < 0.5, "{sync:?}");
    assert_eq!(sync.staleness.keys().copied().collect::<Vec<_>>(), [0], "{sync:?}");
    // Rollouts take a second or two, so training hides them.
    let flow = run(&["policy.mode=fully_async", "policy.max_staleness=2"], &terms);
    assert!(flow.times.step_s < 30.5 && flow.times.step_s >= 29.9, "{flow:?}");
    assert!(flow.staleness.keys().all(|age| *age <= 2) && flow.mean_staleness() > 0.5, "{flow:?}");
    assert!(alone.times.step_s < 10.0, "{alone:?}");
}

#[test]
fn data_that_is_absent_and_gates_outside_are_errors() {
    let error = simulate(&setting(&[]), &Terms { workload: Workload::Data, ..TERMS }).unwrap_err();
    assert!(format!("{error:#}").contains("--prompt-tokens"), "{error:#}");
}

#[test]
fn a_table_and_a_picture_have_each_setting() {
    let change = |value: &str| Change { key: "rollout.workers".to_owned(), value: value.to_owned() };
    let terms = Terms { steps: 2, ..TERMS };
    let results: Vec<(Setting, Outcome)> = ["1", "2"]
        .map(|workers| {
            let setting = setting(&[&format!("rollout.workers={workers}")]);
            let outcome = simulate(&setting, &terms).unwrap();
            (Setting { changes: vec![change(workers)], ..setting }, outcome)
        })
        .into();
    let text = table(&results);
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.starts_with("| rollout.workers |"), "{text}");
    let mut barred = results[0].clone();
    barred.0.changes[0].value = "a|b".to_owned();
    assert!(table(&[barred]).contains("| a\\|b "), "the value stays in its cell");
    let svg = pareto(&results);
    assert!(svg.contains("rollout.workers=2") && svg.matches("<circle").count() == 6, "{svg}");
    assert!(svg.contains("the larger of length and accuracy"), "{svg}");
    let (name, svg) = requests(1, &results[1].0, &results[1].1).unwrap();
    assert_eq!(name, "requests-2.svg");
    assert!(svg.contains("sim-0") && svg.contains("sim-1"), "{svg}");
}

/// A run on simulated servers in real time. The servers take twice as long as real servers would, so that the
/// delays of a busy machine count less.
async fn recorded(dir: &std::path::Path) -> anyhow::Result<()> {
    let set = [
        "data.train=../data/arithmetic/train.jsonl",
        "fleet.simulated.servers=2",
        "fleet.simulated.mean_response_length=100",
        "fleet.simulated.time_scale=2.0",
        "rollout.launch=on_demand",
        "rollout.max_response_length=150",
        "run.steps=3",
    ];
    let path = dir.join("recipe.toml");
    std::fs::write(&path, RECIPE.replace("endpoints = [\"http://a:1\", \"http://b:1\"]", ""))?;
    let set = set.iter().map(|change| (*change).to_owned()).collect();
    let recipe = Recipe::load(&path, &LoadOptions { set, endpoints: Vec::new() })?;
    let run = crate::run::Run::prepare(recipe, dir.join("run"), None, crate::scope::Scope::new()).await?;
    run.execute(&crate::report::Progress::new(false)).await?;
    Ok(())
}

#[test]
fn the_replay_of_a_run_has_its_step_times() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(recorded(folder.path())).unwrap();
    let replay = Replay::read(&folder.path().join("run")).unwrap();
    assert_eq!(replay.steps.len(), 3);
    assert!(replay.groups() >= 3 * 8, "{}", replay.groups());
    let rows: Vec<_> = (0..24).map(|number| replay.group(number)).collect();
    let samples = || rows.iter().flat_map(|row| row.tokens.iter().zip(&row.truncated));
    assert_eq!(samples().count(), 24 * 4);
    let mut truncated = samples().filter(|(_, truncated)| **truncated).map(|(tokens, _)| *tokens).peekable();
    assert!(truncated.peek().is_some() && truncated.all(|tokens| tokens == 150), "{rows:?}");
    let recorded_s = replay.step_s().unwrap();

    let terms = Terms { steps: 3, workload: Workload::Recorded(Arc::new(replay)), ..TERMS };
    let set = ["rollout.launch=on_demand", "rollout.max_response_length=150"];
    let again = run(&set, &terms);
    let ratio = again.times.step_s / recorded_s;
    assert!((0.85..1.1).contains(&ratio), "{ratio}: {again:?}, recorded {recorded_s} s");
    // More servers are not slower, and the work is the same.
    let more = run(&[set[0], set[1], "fleet.simulated.servers=8"], &terms);
    assert!(more.times.step_s < again.times.step_s * 1.01, "{more:?}");
    assert_eq!(more.steps, 3);
}

/// Writes the files of a run of one step with a limit of 250 tokens, whose groups have these samples: the length,
/// whether the sample is right, and whether it was truncated. Files of older versions do not have the latter.
fn written(groups: &[[(u32, bool, bool); 4]], is_old: bool) -> Arc<Replay> {
    let steps = "{\"step\":1,\"life\":1,\"time\":{\"step_s\":9.0}}\n";
    written_with(steps, &[1], groups, is_old)
}

/// As [`written`], with these lines of steps, and with the same groups in each of the `kept` steps.
fn written_with(steps: &str, kept: &[u64], groups: &[[(u32, bool, bool); 4]], is_old: bool) -> Arc<Replay> {
    let run = tempfile::tempdir().unwrap();
    std::fs::create_dir(run.path().join("timeline")).unwrap();
    let row = |(number, samples): (usize, &[(u32, bool, bool); 4])| {
        let mut row = serde_json::json!({
            "number": number, "prompt_uid": format!("{number:016x}"), "prompt_tokens": 32,
            "tokens": samples.map(|(tokens, _, _)| tokens), "right": samples.map(|(_, right, _)| right),
        });
        if !is_old {
            row["truncated"] = samples.map(|(_, _, truncated)| truncated).into_iter().collect();
        }
        row
    };
    let groups: Vec<serde_json::Value> = groups.iter().enumerate().map(row).collect();
    let timeline = serde_json::json!({
        "format": 1, "step": kept[0], "began_s": 0.0, "ended_s": 9.0, "left_out": 0, "servers": [], "requests": [],
        "groups": groups,
    });
    let write = |file: &str, text: String| std::fs::write(run.path().join(file), text).unwrap();
    kept.iter().for_each(|step| write(&format!("timeline/step-{step}.json"), timeline.to_string()));
    write("steps.jsonl", steps.to_owned());
    write("recipe.toml", "[rollout]\nmax_response_length = 250\n".to_owned());
    Arc::new(Replay::read(run.path()).unwrap())
}

/// A replay of one step of 8 groups with the limit of [`written`].
fn replayed(replay: Arc<Replay>, set: &[&str]) -> Outcome {
    let set = [&["rollout.max_response_length=250", "rollout.launch=batch"], set].concat();
    run(&set, &Terms { steps: 1, workload: Workload::Recorded(replay), ..TERMS })
}

const TRUNCATED_GATE: &str = r#"filter.gates=[{gate="truncated",share_max=0.1}]"#;

/// Every second group has a truncated sample. Each of the others has a sample that stopped at the limit.
#[test]
fn a_replay_truncates_the_samples_that_the_run_has_truncated() {
    let groups: Vec<_> = (0..16)
        .map(|number| {
            [(40, true, false), (40, false, false), (250, true, number % 2 == 1), (40, true, false)]
        })
        .collect();
    let outcome = replayed(written(&groups, false), &[TRUNCATED_GATE]);
    assert!((0.4..0.55).contains(&outcome.filtered), "every second group is rejected: {outcome:?}");
    assert_eq!(outcome.accuracy_bias.unwrap().value, 1.0, "{outcome:?}");
    assert_eq!(replayed(written(&groups, false), &[]).filtered, 0.0);
}

#[test]
fn a_truncated_sample_keeps_its_length_and_its_result() {
    let groups: Vec<_> = (0..8)
        .map(|_| [(250, true, true), (250, false, true), (250, true, true), (40, true, false)])
        .collect();
    for is_old in [false, true] {
        let same = replayed(written(&groups, is_old), &[]);
        assert_eq!((same.steps, same.filtered), (1, 0.0), "right and wrong samples make each group valid");
        // With a larger limit the samples end at the same length.
        let larger = replayed(written(&groups, is_old), &["rollout.max_response_length=400"]);
        assert_eq!((larger.filtered, larger.times.step_s), (0.0, same.times.step_s));
        let gated = setting(&["rollout.max_response_length=250", TRUNCATED_GATE]);
        let terms = Terms { steps: 1, workload: Workload::Recorded(written(&groups, is_old)), ..TERMS };
        let error = simulate(&gated, &terms).unwrap_err();
        assert!(
            format!("{error:#}").contains("rollout.max_gen_batches"),
            "every group is rejected: {error:#}"
        );
    }
}

/// The process that began step 2 died; the second process ended the steps 2 and 3, and the third process ended
/// step 5. The line of step 4 was made from the ledger.
#[test]
fn the_mean_time_leaves_out_the_steps_in_which_a_run_was_resumed() {
    let line = |step: u64, life: Option<u64>, step_s: Option<f64>| {
        let time = step_s.map(|step_s| serde_json::json!({ "step_s": step_s }));
        serde_json::json!({ "step": step, "life": life, "time": time }).to_string() + "\n"
    };
    let lines = [
        line(1, Some(1), Some(9.0)),
        line(2, Some(2), Some(0.5)),
        line(3, Some(2), Some(7.0)),
        line(4, None, None),
        line(5, Some(3), Some(0.1)),
    ];
    let groups = [[(40, true, false), (40, false, false), (40, true, false), (40, true, false)]];
    let replay = written_with(&lines.concat(), &[2, 3, 4, 5], &groups, false);
    assert_eq!(replay.steps, [(2, None), (3, Some(7.0)), (4, None), (5, None)]);
    assert_eq!((replay.step_s(), replay.resumed_in.as_slice()), (Some(7.0), &[2, 5][..]));
}

#[test]
fn a_directory_without_records_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = Replay::read(folder.path()).unwrap_err();
    assert!(format!("{error:#}").contains("report.timelines"), "{error:#}");
}

/// A fleet with small KV caches, on which a step takes minutes. One server is slow.
const ONE_SLOW: [&str; 9] = [
    "fleet.simulated={servers=8, speeds=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2]}",
    "fleet.simulated.engine.kv_blocks=9600",
    "rollout.max_response_length=8192",
    "rollout.samples_per_prompt=16",
    "rollout.train_batch_size=256",
    "rollout.gen_batch_size=512",
    "rollout.max_concurrent_prompts=64",
    "rollout.early_stop=fifo",
    "rollout.launch=on_demand",
];

/// The last samples leave the slow server for the others, which are nearly full. Those that a full server then preempts
/// may come back to the slow one, and must be able to leave it again.
#[test]
fn one_slow_server_does_not_keep_the_last_samples_of_a_step() {
    let terms = Terms { steps: 2, training: Duration::ZERO, workload: Workload::Prompts(128) };
    for seed in 1..=4 {
        let slow = run(&[&ONE_SLOW[..], &[&format!("run.seed={seed}")]].concat(), &terms);
        assert!(slow.preemptions > 0 && slow.over_fifo().unwrap() < 1.36, "seed {seed}: {slow:?}");
    }
}

/// All servers of a flow are full. The samples of its oldest groups leave the slow one before the flow has to wait.
#[test]
fn one_slow_server_does_not_slow_a_flow_down() {
    let terms = Terms { steps: 16, training: Duration::from_secs(40), workload: Workload::Prompts(128) };
    for seed in 1..=2 {
        let flow = [
            "policy.mode=fully_async",
            "policy.max_staleness=1",
            "rollout.on_stop=carry",
            "fleet.simulated.engine.kv_blocks=2400",
            "rollout.train_batch_size=64",
            "rollout.max_concurrent_prompts=16",
            &format!("run.seed={seed}"),
        ];
        let slow = run(&[&ONE_SLOW[..], &flow].concat(), &terms);
        assert!(slow.stale == 0 && slow.over_saturation().unwrap() < 1.27, "seed {seed}: {slow:?}");
    }
}

/// In a flow the trainer waits for the oldest groups, and new ones are held back until it announces its next version.
/// The samples of a slow server then use the places that are free on the other servers.
#[test]
fn one_slow_server_does_not_keep_the_oldest_samples_of_a_flow() {
    let terms = Terms { steps: 12, training: Duration::from_secs(2), workload: Workload::Prompts(32) };
    let of = |stragglers: &str| {
        let set = [
            "fleet.simulated={servers=4, speeds=[1.0, 1.0, 1.0, 0.1]}",
            "policy.mode=fully_async",
            "policy.max_staleness=1",
            "rollout.early_stop=fifo",
            "rollout.on_stop=carry",
            "rollout.launch=on_demand",
            &format!("rollout.stragglers={stragglers}"),
        ];
        run(&set, &terms)
    };
    let [stay, moved] = ["stay", "move"].map(of);
    assert_eq!((stay.stale, moved.stale), (0, 0));
    assert!(moved.times.step_s < 0.6 * stay.times.step_s, "{moved:?}\n{stay:?}");
}
