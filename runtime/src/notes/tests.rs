//! The tree of ranks, and what goes up and down in it.

use super::*;
use crate::roles::Roles;

/// Every rank but the coordinator has one parent, which has it as a child, for any coordinator.
#[test]
fn the_ranks_form_a_tree_under_the_coordinator() {
    for (workers, coordinator) in (1..400).flat_map(|workers| [(workers, 0), (workers, 2 % workers)]) {
        let role_map = RoleMap::new(workers, Roles::default()).unwrap();
        let notes = |rank| Notes::new(rank, role_map, coordinator);
        for rank in 0..workers {
            let parent = notes(rank).parent();
            assert_eq!(parent.is_none(), rank == coordinator);
            if let Some(Peer(parent)) = parent {
                assert_eq!(notes(parent).children().filter(|child| child.0 == rank).count(), 1);
            }
            let children: Vec<u32> = notes(rank).children().map(|child| child.0).collect();
            assert!(children.len() <= CHILDREN as usize);
            // What may come from below is bounded by what is there, and all of it reaches the coordinator.
            let of = |rank| below((rank + workers - coordinator) % workers, workers, CHILDREN);
            assert_eq!(of(rank), 1 + children.into_iter().map(of).sum::<usize>());
        }
        assert_eq!(below(0, workers, CHILDREN), workers as usize);
    }
}

#[test]
fn a_text_is_as_long_as_the_notes_of_a_subtree_and_no_longer() {
    // Rank 1 has 3 below it, and rank 2 none.
    let notes = Notes::new(0, RoleMap::new(20, Roles::default()).unwrap(), 0);
    assert_eq!(below(1, 20, CHILDREN), 4);
    for (child, ranks) in [(Peer(1), 4), (Peer(2), 1)] {
        let most = notes.most(child);
        let (mut text, piece) = (Text::default(), vec![0; MAX_PAYLOAD]);
        let mut taken = 0;
        while text.take(&piece, most).is_ok() {
            taken += piece.len() - 1;
        }
        assert!((ranks * LONGEST..=most).contains(&taken) && most < (ranks + 1) * LONGEST, "{taken}");
    }
}

#[test]
fn answers_read_back() {
    for other in [None, Some(0), Some(70_000)] {
        let mut text = write_answer(other);
        [(3, &b"three"[..]), (1, b"")].into_iter().for_each(|(rank, note)| write_note(&mut text, rank, note));
        let answer = read_answer(text.into());
        assert_eq!(answer.other, other);
        assert!(answer.notes.into_iter().eq([(1, Bytes::new()), (3, Bytes::from("three"))]));
    }
}
