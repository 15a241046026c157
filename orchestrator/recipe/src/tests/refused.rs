//! Values and combinations of values that are refused, and boundary values and combinations that are accepted.

use super::{LoadOptions, MINIMAL, complaint, load_text};

const LISTEN: &str = "policy.listen=127.0.0.1:0";
const SINGLE: &str = "rollout.samples_per_prompt=1";

#[test]
fn values_that_cannot_go_together_are_all_named() {
    let text = MINIMAL.replace("train_batch_size = 8", "train_batch_size = 80\nrequest = \"group\"")
        + "[queue]\ncapacity_rows = 3\n[fleet]\nmax_loads_per_server = 2\n";
    let text = text.replace("[fleet.simulated]\nservers = 2\n", "") + "simulated = { servers = 2 }\n";
    let error = complaint(&text);
    for key in ["`fleet.max_loads_per_server`", "`rollout.train_batch_size`", "`queue.capacity_rows`"] {
        assert!(error.contains(key), "{key} is missing in:\n{error}");
    }
}

#[test]
fn both_fleets_or_none_is_an_error() {
    let both = complaint(
        &MINIMAL.replace("[fleet.simulated]", "[fleet]\nendpoints = [\"http://h:1\"]\n[fleet.simulated]"),
    );
    assert!(both.contains("found both"), "{both}");
    let none = complaint(&MINIMAL.replace("[fleet.simulated]\nservers = 2", "[fleet]"));
    assert!(none.contains("`fleet`"), "{none}");
}

#[test]
fn a_fleet_file_without_a_name_is_refused() {
    let fleet = "[fleet]\nendpoints = [\"http://h:1\"]\nfile = \"\"";
    let error = complaint(&MINIMAL.replace("[fleet.simulated]\nservers = 2", fleet));
    assert!(error.contains("`fleet.file`: expected a file"), "{error}");
}

#[test]
fn an_https_endpoint_is_refused() {
    let https =
        complaint(&MINIMAL.replace("[fleet.simulated]\nservers = 2", "[fleet]\nendpoints = [\"https://h\"]"));
    assert!(https.contains("https is not available yet"), "{https}");
}

#[test]
fn a_value_that_cannot_work_is_refused_with_its_key() {
    for (sets, key) in [
        (
            &["rollout.request=group", "fleet.max_loads_per_server=4", "rollout.samples_per_prompt=5"][..],
            "fleet.max_loads_per_server",
        ),
        (&["rollout.request=group", "fleet.adaptive.unreported=3"], "fleet.adaptive.unreported"),
        (&["fleet.servers_min=0"], "fleet.servers_min"),
        (&["run.out="], "run.out"),
        (&["fleet.api_key=\"hush\\n\""], "fleet.api_key"),
        (&["fleet.admin_token=\"hush\\r\""], "fleet.admin_token"),
        (&["queue.token=\"hush\\u0000\""], "queue.token"),
        (&["policy.token=\"hush\\n\""], "policy.token"),
        (&["run.out=\"\""], "run.out"),
        (&["model.chat_template="], "model.chat_template"),
        (&["fleet.servers_min=3"], "fleet.servers_min"),
        (&["fleet.max_loads_per_server=some"], "fleet.max_loads_per_server"),
        (&["fleet.max_tokens_per_server=0"], "fleet.max_tokens_per_server"),
        (&["filter.gates=[{gate=\"min_samples\",samples=999}]"], "filter.gates"),
        (&["rollout.samples_per_prompt=1"], "rollout.samples_per_prompt"),
        (&[SINGLE, "filter={metric=\"none\",gates=[{gate=\"variance\"}]}"], "rollout.samples_per_prompt"),
        (&["fleet.max_loads_per_server=auto", "fleet.adaptive.min=0"], "fleet.adaptive.min"),
        (&["fleet.max_loads_per_server=auto", "fleet.adaptive.start=4"], "fleet.adaptive.start"),
        (&["fleet.max_loads_per_server=auto", "fleet.adaptive.decrease=1.0"], "fleet.adaptive.decrease"),
        (
            &["fleet.max_loads_per_server=auto", "fleet.adaptive.kv_usage_high=0.99"],
            "fleet.adaptive.kv_usage_max",
        ),
        (&["fleet.adaptive.min=8", "fleet.max_loads_per_server=8"], "fleet.adaptive"),
        (&["rollout.request=group", "fleet.max_loads_total=3"], "fleet.max_loads_total"),
        (&["rollout.train_batch_size=17"], "rollout.train_batch_size"),
        (&["rollout.on_stop=carry", "rollout.request=group"], "rollout.on_stop"),
        (&["rollout.carry.segments_max=0"], "rollout.carry.segments_max"),
        (&["rollout.carry.grace=0"], "rollout.carry.grace"),
        (&["rollout.on_stop=carry", "rollout.carry.grace=9.5"], "rollout.carry.grace"),
        (&["rollout.bias_guard.share=1.0"], "rollout.bias_guard.share"),
        (&["rollout.bias_audit=1.5"], "rollout.bias_audit"),
        (&["rollout.stop_unlikely.run_on=0.5"], "rollout.stop_unlikely"),
        (&["rollout.stop_unlikely.below=0"], "rollout.stop_unlikely.below"),
        (&["rollout.stop_unlikely={below=0.1, run_on=0.0}"], "rollout.stop_unlikely.run_on"),
        (&["rollout.stop_unlikely={below=0.1, run_on=1.0}"], "rollout.stop_unlikely.run_on"),
        (&["rollout.stop_unlikely.below=0.1", "filter.enable=false"], "rollout.stop_unlikely"),
        (&["rollout.stop_unlikely.below=0.1", "filter.metric=none"], "rollout.stop_unlikely"),
        (&["rollout.stop_unlikely.below=0.1", "rollout.request=group"], "rollout.stop_unlikely"),
        (
            &["rollout.stop_unlikely.below=0.1", "filter.keep_if_short=[\"variance\"]"],
            "rollout.stop_unlikely",
        ),
        (
            &[
                "rollout.stop_unlikely.below=0.1",
                "filter.gates=[{gate=\"variance\", name=\"alike\", metric=\"acc\"}]",
                "filter.keep_if_short=[\"alike\"]",
            ],
            "rollout.stop_unlikely",
        ),
        (&["data.history.keep_min=0"], "data.history.keep_min"),
        (&["data.history.keep_min=1.5"], "data.history.keep_min"),
        (&["data.history.sampling=difficulty", "filter.enable=false"], "data.history.sampling"),
        (
            &["queue.columns.importance_weight=float32", "queue.listen=127.0.0.1:0"],
            "queue.columns.importance_weight",
        ),
        (&["queue.tasks={train={columns=[\"importance_weight\"]}}"], "queue.tasks.train.columns"),
        (&["rollout.launch_confidence=0.4"], "rollout.launch_confidence"),
        (&["rollout.launch_confidence=1"], "rollout.launch_confidence"),
        (
            &["rollout.bias_guard.share=0.1", "rollout.early_stop=first", "rollout.on_stop=discard"],
            "rollout.bias_audit",
        ),
        (&["gateway.turns_max=4"], "gateway"),
        (&["agent.concurrency=4"], "agent.command"),
        (&["agent.command=[\"a\"]"], "fleet.simulated.transport"),
        (&["agent.command=[\"a\"]", "agent.python=\"m:f\""], "agent.python"),
        (&["agent.command=[\"a\"]", "agent.deadline=0"], "agent.deadline"),
        (&["agent.command=[\"a\"]", "agent.remote=true"], "agent.remote"),
        (&["agent.remote=true", "agent.lease=0"], "agent.lease"),
        (&["agent.remote=true", "agent.attempts_max=0"], "agent.attempts_max"),
        (&["agent.remote=true", "agent.memory_mb=100"], "agent.memory_mb"),
        (&["agent.remote=true", "agent.sandbox=bubblewrap"], "agent.sandbox"),
        (&["agent.command=[\"a\"]", "agent.readable=[\"/home\"]"], "agent.readable"),
        (&["agent.command=[\"a\"]", "agent.scratch_mb=0"], "agent.scratch_mb"),
        (&["agent.remote=true"], "queue.listen"),
        (&["agent.remote=true", "queue.partition=agent_tasks"], "queue.partition"),
        (&["agent.remote=true", "gateway.listen=0.0.0.0:8100"], "gateway.advertise"),
        // Agents on other machines cannot reach the gateway at its default address.
        (&["agent.remote=true", "queue.listen=0.0.0.0:7070"], "gateway.advertise"),
        (&["agent.command=[\"a\"]", "gateway.turns_max=0"], "gateway.turns_max"),
        (&["agent.command=[\"a\"]", "rollout.on_stop=carry"], "rollout.on_stop"),
        (&["agent.command=[\"a\"]", "rollout.request=group"], "rollout.request"),
        (&["agent.command=[\"a\"]", "model.chat_template=none"], "model.chat_template"),
        (&["reward.advantage=grpo_process"], "reward.advantage"),
        (&["reward.advantage=grpo_process", "agent.command=[\"a\"]"], "reward.advantage"),
        (
            &[
                "reward.advantage=grpo_process",
                "environment.name=calculator",
                "reward.shaping.clip=[0.0,1.0]",
            ],
            "reward.shaping",
        ),
        (&["policy.steps_per_version=0"], "policy.steps_per_version"),
        (&["rollout.workers=99999999"], "rollout.workers"),
        (&["rollout.sampling.temperature=-1"], "rollout.sampling.temperature"),
        (&["rollout.sampling.temperature=nan"], "rollout.sampling.temperature"),
        (&["rollout.sampling.temperature=0"], "rollout.sampling.temperature"),
        (&["rollout.sampling.top_p=0"], "rollout.sampling.top_p"),
        (&["rollout.sampling.top_k=0"], "rollout.sampling.top_k"),
        (&["reward.overlong={buffer_length=0,penalty_factor=1.0}"], "reward.overlong.buffer_length"),
        (&["reward.overlong={buffer_length=8,penalty_factor=-1.0}"], "reward.overlong.penalty_factor"),
        (&["reward.scorer=maths"], "reward.scorer"),
        (&["reward.variant=\"2024\""], "reward.variant"),
        (&["reward.method=loose"], "reward.method"),
        (&["validation={every_steps=1,samples_per_prompt=1}"], "validation.every_steps"),
        (&["policy.mode=async"], "policy.mode"),
        (&["policy.mode=one_step_off", "policy.max_staleness=0"], "policy.max_staleness"),
        (&["policy.max_staleness=1048577"], "policy.max_staleness"),
        (&["policy.mode=sync"], "policy.mode"),
        (&["policy.watch=checkpoints"], "policy.watch"),
        (&["queue.consumer={task=\"train\",take_groups=8,announces=true}"], "queue.consumer.announces"),
        (
            &["policy.mode=sync", "queue.consumer={task=\"train\",take_groups=7,announces=true}"],
            "queue.consumer.take_groups",
        ),
        (&["queue.lease_s=0"], "queue.lease_s"),
        (
            &[
                "queue.partition=validation",
                "data.validation=v.jsonl",
                "validation={every_steps=1,samples_per_prompt=1}",
            ],
            "queue.partition",
        ),
        (&["policy.on_stale=keep"], "policy.on_stale"),
        (&["policy.listen=localhost:7401"], "policy.listen"),
        (&["policy.token=\"\""], "policy.token"),
        (&["policy.watch=\"\""], "policy.watch"),
        (&["policy.watch=checkpoints", "policy.update.method=transfer"], "policy.watch"),
        (&["policy.update.method=rsync"], "policy.update.method"),
        (&["policy.update.pause=freeze"], "policy.update.pause"),
        (&["policy.update.rpc=\"\""], "policy.update.rpc"),
        (&["policy.update.method=command"], "policy.update.command"),
        (&["policy.update.method=command", "policy.update.command=[\"\"]"], "policy.update.command"),
        (&["policy.update.command=[\"./push.sh\"]"], "policy.update.command"),
        (&["policy.mode=sync", LISTEN, "policy.update.method=reload"], "policy.update.method"),
        (&["policy.mode=fully_async", LISTEN, "policy.update.method=transfer"], "policy.update.method"),
        (&["policy.update.method=http"], "policy.update.url"),
        (&["policy.update.method=http", "policy.update.url=trainer:80"], "policy.update.url"),
        (&["policy.update.url=\"http://trainer\""], "policy.update.url"),
        (&["policy.update.timeouts.update=0"], "policy.update.timeouts.update"),
        (&["policy.update.timeouts.update=3601"], "policy.update.timeouts.update"),
        (&["policy.update.timeouts.pause=nan"], "policy.update.timeouts.pause"),
        (&["queue.consumer={task=\"train\",take_groups=1,train_s=-1}"], "queue.consumer.train_s"),
        (&["queue.consumer={task=\"train\",take_groups=1,train_s=inf}"], "queue.consumer.train_s"),
        (&["queue.tasks=[]"], "queue.tasks"),
        (&["queue.tasks=[\"a\",\"a\"]"], "queue.tasks"),
        (&["queue.tasks={}"], "queue.tasks"),
        (&["queue.tasks={a={columns=[\"reward\",\"reward\"]}}"], "queue.tasks.a.columns"),
        (&["queue.tasks={a={columns=[\"ref_log_prob\"]}}"], "queue.listen"),
        (&["queue.columns={reward=\"float32\"}"], "queue.columns.reward"),
        (&["queue.capacity_rows=31"], "queue.capacity_rows"),
        (&["queue.capacity_rows=31", "queue.on_full=refuse"], "queue.capacity_rows"),
        (&["queue.capacity_rows=3", "queue.on_full=drop_oldest"], "queue.capacity_rows"),
        (&["queue.capacity_rows=63", "run.steps=2"], "queue.capacity_rows"),
        (&["queue.consumer={task=\"other\",take_groups=1}"], "queue.consumer.task"),
        (&["queue.listen=localhost"], "queue.listen"),
        (&["queue.listen=127.0.0.1:0", "queue.capacity_rows=3"], "queue.capacity_rows"),
        (&["queue.token=\"\""], "queue.token"),
        (&["fleet.admin_token=\"\""], "fleet.admin_token"),
        (&["fleet.admin=0.0.0.0:7500"], "fleet.admin_token"),
        (&["limits.waiting_max=511"], "limits.waiting_max"),
        (&["timeouts.stall=1e300"], "timeouts.stall"),
        (&["timeouts.stall=0"], "timeouts.stall"),
        (&["fleet.probe_interval=1e300"], "fleet.probe_interval"),
        (&["fleet.simulated.time_scale=inf"], "fleet.simulated.time_scale"),
        (&["fleet.simulated.speeds=[1.0,1.0,1.0]"], "fleet.simulated.speeds"),
        (&["run.steps=0"], "run.steps"),
        (&["data.epochs=0"], "data.epochs"),
        (&["data.train=[]"], "data.train"),
        (&["data.train="], "data.train"),
    ] {
        let options =
            LoadOptions { set: sets.iter().map(|set| (*set).to_owned()).collect(), ..Default::default() };
        let error = load_text(MINIMAL, &options).expect_err(&format!("{sets:?} must be refused"));
        assert!(error.contains(&format!("`{key}`: ")), "the error for {sets:?} should name {key}:\n{error}");
    }
}

#[test]
fn boundary_values_and_valid_combinations_are_accepted() {
    for sets in [
        &["queue.capacity_rows=32"][..],
        &["queue.capacity_rows=64", "run.steps=2"],
        &["queue.capacity_rows=4", "queue.on_full=drop_oldest"],
        &[
            "queue.tasks={a={},b={columns=[\"reward\",\"x\"]}}",
            "queue.columns={x=\"float32\"}",
            "queue.listen=127.0.0.1:0",
        ],
        &["queue.capacity_rows=4", "queue.consumer={task=\"train\",take_groups=1}"],
        &["rollout.train_batch_size=16"],
        &["limits.waiting_max=512"],
        &["fleet.servers_min=2"],
        &["rollout.request=group", "fleet.max_loads_per_server=4"],
        &["rollout.request=group", "rollout.samples_per_prompt=300"],
        &["rollout.request=group", "rollout.fill=samples"],
        &["rollout.stop_unlikely={below=0.99,run_on=0.99}"],
        &["rollout.stop_unlikely.below=0.1", "filter={metric=\"none\",gates=[{gate=\"variance\"}]}"],
        &["rollout.stop_unlikely.below=0.1", "queue.tasks={a={columns=[\"importance_weight\"]}}"],
        &["rollout.sampling.temperature=0", "filter.enable=false"],
        &["reward.overlong={buffer_length=129,penalty_factor=0.0}"],
        &["policy.max_staleness=0"],
        &["policy.mode=fully_async", "policy.max_staleness=1048576"],
        &["policy.update.method=http", "policy.update.url=\"http://trainer:80/push\""],
        &["policy.update.method=command", "policy.update.command=[\"./push.sh\"]"],
        &[
            "policy.mode=fully_async",
            "queue.consumer={task=\"train\",take_groups=8,train_s=2,announces=true}",
        ],
        &["policy.mode=sync", "policy.listen=127.0.0.1:0"],
        &["policy.mode=sync", LISTEN, "policy.update.method=reload", "fleet.simulated.transport=http"],
        // Without announcements, no method is used.
        &["policy.update.method=reload"],
        &[SINGLE, "filter.enable=false"],
        &[SINGLE, "filter.metric=none"],
        &[SINGLE, "filter.keep_if_short=[\"variance\"]"],
        &["policy.mode=sync", "queue.consumer={task=\"train\",take_groups=8,announces=true}"],
    ] {
        let options =
            LoadOptions { set: sets.iter().map(|set| (*set).to_owned()).collect(), ..Default::default() };
        load_text(MINIMAL, &options)
            .unwrap_or_else(|error| panic!("expected {sets:?} to be accepted, found:\n{error}"));
    }
}

#[test]
fn a_synchronous_run_without_a_trainer_is_refused_with_the_keys_to_set() {
    for text in
        [MINIMAL.replace("mode = \"off\"", "mode = \"sync\""), MINIMAL.replace("mode = \"off\"\n", "")]
    {
        let error = complaint(&text);
        for words in ["`policy.mode`: ", "policy.listen, policy.watch", "policy.mode = \"off\""] {
            assert!(error.contains(words), "{words} is missing in:\n{error}");
        }
    }
}

#[test]
fn a_run_that_would_wait_for_room_for_ever_is_refused() {
    let endless = MINIMAL.replace("run.steps = 1\n", "");
    let refused = complaint(&endless);
    assert!(refused.contains("`run.steps`") && refused.contains("queue.on_full = \"refuse\""), "{refused}");
    for key in
        ["queue.on_full=refuse", "queue.on_full=drop_oldest", "queue.listen=127.0.0.1:0", "run.steps=2"]
    {
        let options = LoadOptions { set: vec![key.to_owned()], ..Default::default() };
        load_text(&endless, &options).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    let consumer = "queue.consumer={task=\"train\",take_groups=1,keep_last_steps=1}".to_owned();
    let kept = load_text(&endless, &LoadOptions { set: vec![consumer], ..Default::default() }).unwrap_err();
    assert!(kept.contains("`queue.consumer.keep_last_steps`"), "{kept}");
}
