//! The file of a checkpoint that holds a worker's model: safetensors with a checksum over all of it.
//!
//! Nothing here knows candle, so that its reader can be fuzzed without it.

use std::collections::HashMap;

use gleaner_runtime::checksum;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

const FORMAT: &str = "gleaner model 2";

/// Names and values that a file says of itself.
pub type Identity = Vec<(&'static str, String)>;

/// Why a file is not the one to go on from.
#[derive(Debug)]
pub enum Refusal {
    /// It is not what was written.
    Damaged(String),
    /// It says something else of itself than it should.
    Other {
        /// What.
        name: &'static str,
        /// What it should say.
        expected: String,
        /// What it says, if anything.
        found: Option<String>,
    },
}

/// What a file holds.
pub struct Model<'a> {
    /// Which run it is of.
    pub run: String,
    /// Step and held-out loss of the evaluations before.
    pub loss_curve: Vec<(u64, f64)>,
    /// Its numbers, by name.
    pub tensors: Numbers<'a>,
}

/// The numbers of a file.
pub struct Numbers<'a>(SafeTensors<'a>);

impl<'a> Model<'a> {
    /// Reads a file that must be whole and say all of this of itself.
    pub fn read(content: &'a [u8], identity: &Identity) -> Result<Self, Refusal> {
        let unreadable = |error: safetensors::SafeTensorError| Refusal::Damaged(error.to_string());
        let tensors = SafeTensors::deserialize(content).map_err(unreadable)?;
        let (_, header) = SafeTensors::read_metadata(content).map_err(unreadable)?;
        let mut header = header.metadata().clone().unwrap_or_default();
        let mut take = |name: &str| header.remove(name);
        match take("format") {
            Some(format) if format == FORMAT => {}
            other => {
                let found = other.unwrap_or_else(|| "unknown".to_owned());
                return Err(Refusal::Damaged(format!("its format is {found}, expected {FORMAT}")));
            }
        }
        checksum::verify(content).map_err(|error| Refusal::Damaged(error.to_string()))?;
        for (name, expected) in identity {
            let found = take(name);
            if found.as_ref() != Some(expected) {
                return Err(Refusal::Other { name, expected: expected.clone(), found });
            }
        }
        let missing = |what: &str| Refusal::Damaged(format!("it has no {what}"));
        let run = take("run").ok_or_else(|| missing("run"))?;
        let loss_curve = take("loss_curve").and_then(|curve| read_curve(&curve));
        let loss_curve = loss_curve.ok_or_else(|| missing("loss curve"))?;
        Ok(Self { run, loss_curve, tensors: Numbers(tensors) })
    }
}

impl Numbers<'_> {
    /// Those of that name, which must be so many.
    pub fn values(&self, name: &str, number: usize) -> Result<Vec<f32>, Refusal> {
        let tensor = self.0.tensor(name).map_err(|error| Refusal::Damaged(error.to_string()))?;
        let (words, _) = tensor.data().as_chunks::<4>();
        if tensor.dtype() != Dtype::F32 || words.len() != number {
            let found = format!("{} numbers for {name} instead of {number}", words.len());
            return Err(Refusal::Damaged(found));
        }
        Ok(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
    }
}

/// A file of these numbers.
pub fn write(
    identity: &Identity,
    run: &str,
    loss_curve: &[(u64, f64)],
    tensors: &[(String, Vec<f32>)],
) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
    let bytes = |values: &Vec<f32>| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let tensors: Vec<(&String, Vec<u8>)> =
        tensors.iter().map(|(name, values)| (name, bytes(values))).collect();
    let views = tensors
        .iter()
        .map(|(name, bytes)| Ok((name, TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    let mut header: HashMap<String, String> =
        identity.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    header.insert("format".into(), FORMAT.into());
    header.insert("run".into(), run.into());
    header.insert("loss_curve".into(), write_curve(loss_curve));
    checksum::reserve(&mut header);
    let mut file = safetensors::serialize(views, Some(header))?;
    checksum::seal(&mut file)?;
    Ok(file)
}

/// Steps and losses as words; unlike JSON's, Rust's own decimals come back as the same bits.
fn write_curve(curve: &[(u64, f64)]) -> String {
    let words: Vec<String> = curve.iter().map(|(step, loss)| format!("{step} {loss}")).collect();
    words.join(" ")
}

fn read_curve(text: &str) -> Option<Vec<(u64, f64)>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.chunks(2).map(|pair| match pair {
        [step, loss] => Some((step.parse().ok()?, loss.parse().ok()?)),
        _ => None,
    });
    pairs.collect()
}
