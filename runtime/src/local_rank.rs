//! Which of the workers of its host this one is: by it workers choose their GPU.

/// Which launcher sets which variable: `gleaner launch`, torchrun, Slurm, Open MPI, and MPICH.
const VARIABLES: [&str; 5] =
    ["GLEANER_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"];

/// This worker's number among those of its host, from 0, as whatever started it says; None if nothing does, as for a program that was
/// started by itself. Of several that say so the first in the order of
/// `GLEANER_LOCAL_RANK`, `LOCAL_RANK`, `SLURM_LOCALID`, `OMPI_COMM_WORLD_LOCAL_RANK` and `MPI_LOCALRANKID` counts.
pub fn local_rank() -> Option<u32> {
    first(|name| std::env::var(name).ok())
}

fn first(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
    VARIABLES.iter().find_map(|name| variable(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_that_started_the_worker_counts() {
        let among = |set: &'static [(&str, &str)]| {
            first(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(among(&[]), None);
        assert_eq!(among(&[("SLURM_LOCALID", "3")]), Some(3));
        assert_eq!(among(&[("SLURM_LOCALID", "3"), ("GLEANER_LOCAL_RANK", "1")]), Some(1));
        assert_eq!(among(&[("LOCAL_RANK", "x"), ("OMPI_COMM_WORLD_LOCAL_RANK", "2")]), Some(2));
    }
}
