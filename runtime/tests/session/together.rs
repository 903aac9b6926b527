//! What trainers do together beside their gradients.

use gleaner_algorithms::Method;
use gleaner_runtime::Layout;

use crate::job::{Over, run};

#[test]
fn all_ranks_have_the_values_of_rank_0() {
    // More than one note carries.
    let n = 300_001;
    let found = run(Over::Memory, 3, |session| {
        let mut values: Vec<f32> = (0..n).map(|i| (i * (session.rank() + 1)) as f32).collect();
        if session.rank() == 0 {
            values[5] = -0.0;
        }
        session.broadcast(&mut values).unwrap();
        values
    });
    for values in &found {
        assert!(values.iter().zip(&found[0]).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
    assert!(found[0][5].is_sign_negative() && found[2][300_000] == 300_000.0);
}

#[test]
fn ranks_with_other_numbers_of_values_are_named() {
    let found = run(Over::Memory, 2, |session| {
        session.broadcast(&mut vec![1.0; 3 + session.rank()]).unwrap_err().to_string()
    });
    for sentence in found {
        assert!(sentence.contains("expected as many on every rank"), "{sentence}");
    }
}

#[test]
fn means_shards_and_steps_are_common() {
    let found = run(Over::Memory, 3, |session| {
        let rank = session.rank();
        let steps: &[u64] = [&[10, 30, 20][..], &[20, 10], &[10, 20, 40]][rank];
        let mine: &[u64] = if rank == 0 { &[] } else { &[1] };
        (
            session.mean(rank as f64 + 0.5).unwrap(),
            session.shard(10),
            session.newest_common(steps).unwrap(),
            session.newest_common(mine).unwrap(),
        )
    });
    let shards = [0..4, 4..7, 7..10];
    for ((mean, shard, newest, none), expected) in found.into_iter().zip(shards) {
        assert_eq!((mean, shard, newest, none), (1.5, expected, Some(20), None));
    }
}

#[test]
fn parameters_are_saved_with_what_waits() {
    let folder = tempfile::tempdir().unwrap();
    let path = |rank: usize| folder.path().join(format!("{rank}.safetensors"));
    run(Over::Memory, 2, |session| {
        let layout = Layout::new().parameter("weights", 4);
        let mut gradients = session.gradients(&layout, Method::spardl().k(1)).unwrap();
        gradients.ready("weights", &[0.5, -2.0, 0.25, 0.0]).unwrap();
        let mut weights = [1.0f32; 4];
        gradients.wait().unwrap().add_to("weights", &mut weights, -0.5).unwrap();
        let momentum = [session.rank() as f32];
        let [seed, other] = ["3", "4"].map(|seed| ("seed", seed.to_owned()));
        let values = [("weights", &weights[..]), ("momentum", &momentum[..])];
        let words = [seed.clone(), ("epoch", "7".into())];
        gradients.save_with(path(session.rank()), &values, &words).unwrap();

        let mut again = session.gradients(&layout, Method::spardl().k(1)).unwrap();
        let (mut found, mut moved) = ([0.0f32; 4], [9.0f32]);
        for (name, word, refused) in [
            ("bias", seed.clone(), "length of 'bias' is missing, here it is 4"),
            ("weights", other, "its seed is 3, here it is 4"),
            ("weights", ("model", "cnn".into()), "its model is missing, here it is cnn"),
        ] {
            let refusal = again.load_with(path(session.rank()), &mut [(name, &mut found)], &[word]);
            let refusal = refusal.unwrap_err().to_string();
            assert!(refusal.contains(refused) && again.step() == 0, "{refusal}");
        }
        let values = &mut [("weights", &mut found[..]), ("momentum", &mut moved[..])];
        let said = again.load_with(path(session.rank()), values, &[seed]).unwrap();
        assert_eq!((found, moved, again.step()), (weights, momentum, 1));
        assert_eq!((said.len(), said["epoch"].as_str()), (2, "7"));
        // It is a checkpoint of gradients as well.
        again.load(path(session.rank())).unwrap();
    });
}
