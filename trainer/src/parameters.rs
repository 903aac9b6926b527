//! The parameters of a model: declared in layer order, started from a seed, updated in place.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::{Device, Result, Tensor, Var};
use gleaner_algorithms::Method;
use gleaner_algorithms::merging::Strategy;
use gleaner_candle::{Overlap, OverlapError, Rows, with_values};
use gleaner_runtime::Session;
use sha2::{Digest, Sha256};

use crate::dct::Dct;

use gleaner_statistics::random::Generator;

/// A parameter as layers use it: as it is watched in a step of training, and itself otherwise.
#[derive(Clone)]
pub struct Weight(Rc<RefCell<Tensor>>);

impl Weight {
    /// The tensor that the present forward pass uses.
    pub fn tensor(&self) -> Tensor {
        self.0.borrow().clone()
    }
}

impl From<Tensor> for Weight {
    fn from(tensor: Tensor) -> Self {
        Weight(Rc::new(RefCell::new(tensor)))
    }
}

/// A table of which a layer uses some rows in a step: as it is watched in a step of training, and itself otherwise.
#[derive(Clone)]
pub enum Embedding {
    /// In main memory, where its gradients are sparse.
    Rows {
        /// The table itself.
        table: Var,
        /// What a step of training uses in its stead.
        watched: Rc<RefCell<Option<Rows>>>,
    },
    /// On a device, where it is a parameter like any other.
    Whole(Weight),
}

impl Embedding {
    /// The rows with these numbers, (numbers, width).
    ///
    /// # Errors
    /// A number of no row.
    pub fn select(&self, numbers: &Tensor) -> Result<Tensor> {
        match self {
            Embedding::Whole(weight) => weight.tensor().index_select(numbers, 0),
            Embedding::Rows { table, watched } => match &*watched.borrow() {
                Some(rows) => rows.select(numbers),
                None => table.index_select(numbers, 0),
            },
        }
    }
}

/// What the layer that uses a parameter has of it.
enum Used {
    Whole(Weight),
    Rows(Rc<RefCell<Option<Rows>>>),
}

/// One tensor that training changes.
pub struct Parameter {
    /// Its name, such as `stage2.block1.convolution1.weight`.
    pub name: String,
    variable: Var,
    used: Used,
    /// The same values in main memory, where the optimizer works; none of a parameter on a device.
    values: Vec<f32>,
}

impl Parameter {
    /// The variable, to look up its gradient.
    pub fn variable(&self) -> &Var {
        &self.variable
    }

    /// Whether its gradients are sparse: a step uses some rows of it.
    pub fn is_embedding(&self) -> bool {
        matches!(self.used, Used::Rows(_))
    }

    /// How many values there are.
    pub fn count(&self) -> usize {
        self.variable.elem_count()
    }

    /// The values, in row-major order; from a device they are copied.
    pub fn values(&self) -> Result<Cow<'_, [f32]>> {
        match self.variable.device() {
            Device::Cpu => Ok(Cow::Borrowed(&self.values)),
            _ => Ok(Cow::Owned(self.variable.flatten_all()?.to_vec1()?)),
        }
    }

    /// Changes the values in main memory, for the optimizer and the model alike.
    pub fn update(&mut self, change: impl FnOnce(&mut [f32])) -> Result<()> {
        let (shape, device) = (self.variable.shape(), self.variable.device());
        if device.is_cpu() {
            change(&mut self.values);
            return self.variable.set(&Tensor::from_slice(&self.values, shape, device)?);
        }
        let mut values = self.values()?.into_owned();
        change(&mut values);
        self.variable.set(&Tensor::from_vec(values, shape, device)?)
    }
}

/// Values that belong to the model but have no gradient: the running averages of batch normalisation.
pub struct Buffer {
    /// Its name, such as `normalisation.running_mean`.
    pub name: String,
    /// Shared with the layer that uses it; of one dimension.
    pub values: Rc<RefCell<Tensor>>,
}

impl Buffer {
    /// How many values there are.
    pub fn count(&self) -> usize {
        self.values.borrow().elem_count()
    }

    /// Puts as many values in the place of those that are there.
    pub fn set(&self, values: &[f32]) -> Result<()> {
        let mut own = self.values.borrow_mut();
        *own = Tensor::from_slice(values, own.elem_count(), own.device())?;
        Ok(())
    }
}

/// All parameters and buffers of a model, in layer order.
pub struct Parameters {
    /// What the optimizer changes.
    pub list: Vec<Parameter>,
    /// What the layers themselves change.
    pub buffers: Vec<Buffer>,
}

impl Parameters {
    /// How many numbers are trained.
    pub fn count(&self) -> usize {
        self.list.iter().map(Parameter::count).sum()
    }

    /// Agrees with all ranks on the parameters, whose gradients are exchanged by this method, grouped by this strategy.
    ///
    /// # Errors
    /// As [`Overlap::with_embeddings`].
    pub fn overlap<'s>(
        &self,
        session: &'s Session,
        method: Method,
        strategy: Arc<dyn Strategy>,
    ) -> std::result::Result<Overlap<'s>, OverlapError> {
        let (embeddings, others): (Vec<&Parameter>, _) = self.list.iter().partition(|p| p.is_embedding());
        let named = |parameters: Vec<&Parameter>| {
            parameters.into_iter().map(|p| (p.name.clone(), p.variable.clone())).collect::<Vec<_>>()
        };
        Overlap::with_embeddings(session, named(others), named(embeddings), method, strategy)
    }

    /// Lets the layers use every parameter as it is watched, until [`Parameters::unwatch`].
    pub fn watch(&self, overlap: &mut Overlap) -> std::result::Result<(), OverlapError> {
        for parameter in &self.list {
            match &parameter.used {
                Used::Whole(weight) => *weight.0.borrow_mut() = overlap.watch(&parameter.name)?,
                Used::Rows(watched) => *watched.borrow_mut() = Some(overlap.rows(&parameter.name)?),
            }
        }
        Ok(())
    }

    /// Lets the layers use the parameters themselves.
    pub fn unwatch(&self) {
        for parameter in &self.list {
            match &parameter.used {
                Used::Whole(weight) => *weight.0.borrow_mut() = parameter.variable.as_tensor().clone(),
                Used::Rows(watched) => *watched.borrow_mut() = None,
            }
        }
    }

    /// Shortens a gradient whose norm, over all parameters, is larger than this.
    pub fn clip(&self, gradient: &mut GradStore, largest: f32) -> Result<()> {
        let mut sum = 0.0;
        for gradient in self.list.iter().filter_map(|parameter| gradient.get(parameter.variable())) {
            sum += with_values(gradient, |values| {
                values.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>()
            })?;
        }
        let factor = f64::from(largest) / sum.sqrt();
        if factor < 1.0 {
            for variable in self.list.iter().map(Parameter::variable) {
                if let Some(own) = gradient.remove(variable) {
                    gradient.insert(variable, (own * factor)?);
                }
            }
        }
        Ok(())
    }

    /// Transforms the gradients of all parameters but embeddings.
    ///
    /// # Errors
    /// What has failed on a device.
    pub fn transform(&self, gradient: &mut GradStore, dct: &Dct) -> Result<()> {
        for variable in
            self.list.iter().filter(|parameter| !parameter.is_embedding()).map(Parameter::variable)
        {
            let Some(own) = gradient.remove(variable) else { continue };
            let mut values: Vec<f32> = own.flatten_all()?.to_vec1()?;
            dct.forward(&mut values);
            gradient.insert(variable, Tensor::from_vec(values, own.shape(), own.device())?);
        }
        Ok(())
    }

    /// The transform of these, in blocks of so many values.
    pub fn dct(&self, block: usize) -> Dct {
        Dct::new(block, self.list.iter().map(Parameter::count))
    }

    /// SHA-256 over the names and the little-endian values, in order: equal on two workers if every bit is equal.
    pub fn digest(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for parameter in &self.list {
            hash.update(parameter.name.as_bytes());
            hash.update([0]);
            for value in parameter.values()?.iter() {
                hash.update(value.to_le_bytes());
            }
        }
        Ok(hexadecimal(&hash.finalize()))
    }

    /// All buffers, one after the other.
    pub fn buffer_values(&self) -> Result<Vec<f32>> {
        let each = self.buffers.iter().map(|buffer| buffer.values.borrow().to_vec1());
        Ok(each.collect::<Result<Vec<Vec<f32>>>>()?.concat())
    }

    /// Puts back what [`Parameters::buffer_values`] gave.
    pub fn set_buffer_values(&self, values: &[f32]) -> Result<()> {
        let mut rest = values;
        for buffer in &self.buffers {
            let (own, others) = rest.split_at(buffer.count());
            buffer.set(own)?;
            rest = others;
        }
        Ok(())
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Declares parameters in layer order while a model is put together.
///
/// Starting values depend on the seed and the declarations before, and on nothing else, so that all workers agree.
pub struct Builder {
    parameters: Parameters,
    generator: Generator,
    device: Device,
}

impl Builder {
    /// Begins a model on a device.
    pub fn new(seed: u64, device: &Device) -> Self {
        let parameters = Parameters { list: Vec::new(), buffers: Vec::new() };
        Builder { parameters, generator: Generator::new(seed, "weights", 0), device: device.clone() }
    }

    /// A parameter with uniform values in ±`bound`.
    pub fn uniform(&mut self, name: &str, shape: &[usize], bound: f32) -> Result<Weight> {
        let values = self.uniform_values(shape.iter().product(), bound);
        self.declare(name, shape, values)
    }

    fn uniform_values(&mut self, count: usize, bound: f32) -> Vec<f32> {
        (0..count).map(|_| bound * self.generator.symmetric()).collect()
    }

    /// Weights before a rectifier, (inputs, outputs): uniform with variance 2/inputs (He et al., ICCV 2015).
    pub fn rectifier_weights(&mut self, name: &str, inputs: usize, outputs: usize) -> Result<Weight> {
        self.uniform(name, &[inputs, outputs], (6.0 / inputs as f32).sqrt())
    }

    /// A parameter whose values are all the same.
    pub fn constant(&mut self, name: &str, shape: &[usize], value: f32) -> Result<Weight> {
        self.declare(name, shape, vec![value; shape.iter().product()])
    }

    /// A table of which steps use some rows, with uniform values in ±`bound`.
    pub fn embedding(&mut self, name: &str, rows: usize, width: usize, bound: f32) -> Result<Embedding> {
        let values = self.uniform_values(rows * width, bound);
        if !self.device.is_cpu() {
            return Ok(Embedding::Whole(self.declare(name, &[rows, width], values)?));
        }
        self.add(name, &[rows, width], values, |table| {
            let watched = Rc::default();
            (Used::Rows(Rc::clone(&watched)), Embedding::Rows { table: table.clone(), watched })
        })
    }

    /// A parameter with the values given.
    pub fn declare(&mut self, name: &str, shape: &[usize], values: Vec<f32>) -> Result<Weight> {
        self.add(name, shape, values, |variable| {
            let weight = Weight::from(variable.as_tensor().clone());
            (Used::Whole(weight.clone()), weight)
        })
    }

    fn add<U>(
        &mut self,
        name: &str,
        shape: &[usize],
        values: Vec<f32>,
        used: impl FnOnce(&Var) -> (Used, U),
    ) -> Result<U> {
        let variable = Var::from_slice(&values, shape, &self.device)?;
        let (used, layers) = used(&variable);
        let values = if self.device.is_cpu() { values } else { Vec::new() };
        self.parameters.list.push(Parameter { name: name.to_string(), variable, used, values });
        Ok(layers)
    }

    /// A buffer, shared with its layer.
    pub fn buffer(&mut self, name: &str, values: Vec<f32>) -> Result<Rc<RefCell<Tensor>>> {
        let count = values.len();
        let values = Rc::new(RefCell::new(Tensor::from_vec(values, count, &self.device)?));
        self.parameters.buffers.push(Buffer { name: name.to_string(), values: values.clone() });
        Ok(values)
    }

    /// The parameters declared.
    pub fn finish(self) -> Parameters {
        self.parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_the_values_and_the_digest() {
        let build = |seed| {
            let mut builder = Builder::new(seed, &Device::Cpu);
            builder.uniform("a", &[3, 4], 0.5).unwrap();
            builder.finish()
        };
        assert_eq!(build(1).digest().unwrap(), build(1).digest().unwrap());
        assert_ne!(build(1).digest().unwrap(), build(2).digest().unwrap());
        assert_eq!(build(1).digest().unwrap().len(), 64);
    }

    #[test]
    fn an_update_reaches_the_model() {
        let mut builder = Builder::new(1, &Device::Cpu);
        let weight = builder.constant("a", &[2], 1.0).unwrap();
        let mut parameters = builder.finish();
        parameters.list[0].update(|values| values[1] = 5.0).unwrap();
        assert_eq!(weight.tensor().to_vec1::<f32>().unwrap(), [1.0, 5.0]);
    }
}
