mod schedules;

use super::*;

fn fleet(speeds: &[f64]) -> FleetModel {
    let server = ServerConfig {
        decode_base_ns: 1_000_000,
        decode_ns_per_seq: 0,
        decode_ns_per_kv_token: 0,
        prefill_ns_per_token: 0,
        ..ServerConfig::default()
    };
    FleetModel { server, speeds: speeds.to_vec(), permits: 10 }
}

fn group(samples: &[(u32, bool)], is_valid: bool) -> DrawnGroup {
    DrawnGroup { prompt_ids: [1; 5].into(), samples: samples.to_vec(), is_valid }
}

/// The reference of one step that needs all of these groups.
fn step(fleet: &FleetModel, groups: Vec<DrawnGroup>) -> Reference {
    let valid = groups.iter().filter(|group| group.is_valid).count();
    Reference::new(fleet, groups, valid, 1)
}

#[test]
fn a_bound_is_the_work_or_the_longest_sample() {
    // A step takes a millisecond for up to ten samples, so 20 samples of 100 tokens are 0.2 s of one server.
    let many = group(&[(100, true); 20], true);
    let bounds = step(&fleet(&[1.0]), vec![many.clone()]);
    assert!((bounds.fifo_s - 0.2).abs() < 1e-9 && (bounds.saturation_s - 0.2).abs() < 1e-9, "{bounds:?}");
    // Four servers share the work, and the longest sample needs 0.1 s on the fastest of them.
    let bounds = step(&fleet(&[1.0, 0.5, 0.5, 2.0]), vec![many]);
    assert!((bounds.saturation_s - 0.05).abs() < 1e-9, "{bounds:?}");
    assert!((bounds.fifo_s - 0.05).abs() < 1e-9, "{bounds:?}");
    let bounds = step(&fleet(&[1.0; 4]), vec![group(&[(400, true)], true)]);
    assert!((bounds.saturation_s - 0.01).abs() < 1e-9 && (bounds.fifo_s - 0.4).abs() < 1e-9, "{bounds:?}");
}

#[test]
fn a_step_needs_all_groups_up_to_its_last_valid_one() {
    let draws = [
        group(&[(10, true), (30, false)], true),
        group(&[(50, true), (50, true)], false),
        group(&[(20, true), (20, false)], true),
        group(&[(90, true), (90, false)], true),
    ];
    let reference = Reference::new(&fleet(&[1.0]), draws.clone(), 2, 5);
    // The second step would need a further group.
    assert_eq!(reference.valid.len(), 1);
    assert_eq!(reference.tokens, 180);
    assert_eq!(reference.all_valid().mean_length(), 20.0);
    assert_eq!(reference.all_valid().mean_acc(), 0.5);
    let each = Reference::new(&fleet(&[1.0]), draws, 1, 3);
    assert_eq!((each.valid.len(), each.tokens), (3, 360));
    assert_eq!(each.valid[2].mean_length(), 90.0);
}
