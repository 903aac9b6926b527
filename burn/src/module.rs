//! What is read of a module's parameters, and written into them.

use std::collections::HashMap;

use burn::backend::{DType, Dispatch, DispatchTensor};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use gleaner_runtime::{Gradients, Update};

use crate::OverlapError;
use crate::watch::{Watch, Watched, with_values};

/// A parameter that is trained.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Its path in the module: burn's own identifiers differ from rank to rank.
    pub(crate) name: String,
    pub(crate) entries: usize,
}

/// The parameters of a module that are trained, in its order, each once.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) positions: HashMap<ParamId, usize>,
    path: Vec<String>,
    error: Option<OverlapError>,
}

impl Found {
    pub(crate) fn of(module: &impl Module) -> Result<Self, OverlapError> {
        let mut found = Self::default();
        module.visit(&mut found);
        match found.error.take() {
            Some(error) => Err(error),
            None if found.parameters.is_empty() => Err(OverlapError::Untrained),
            None => Ok(found),
        }
    }
}

impl ModuleVisitor for Found {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let value = parameter.val();
        if !value.is_require_grad() || self.positions.contains_key(&parameter.id) {
            return;
        }
        let name = self.path.join(".");
        let (dtype, device) = (value.dtype(), value.device());
        if dtype != DType::F32 || device != Device::flex().autodiff() {
            let found = format!("{dtype:?} on {device:?}");
            self.error.get_or_insert(OverlapError::Kind { name, found });
            return;
        }
        self.positions.insert(parameter.id, self.parameters.len());
        self.parameters.push(Parameter { name, entries: value.shape().num_elements() });
    }
}

/// Puts watched tensors in the place of parameters.
pub(crate) struct Watcher<'a, F> {
    pub(crate) positions: &'a HashMap<ParamId, usize>,
    /// What was watched in this step.
    pub(crate) known: &'a mut HashMap<usize, DispatchTensor>,
    /// What the layer is applied to; nothing if no parameters lead to it.
    pub(crate) input: Option<DispatchTensor>,
    pub(crate) watched: F,
    pub(crate) error: Option<OverlapError>,
}

impl<F: Fn(usize) -> Watched> ModuleMapper for Watcher<'_, F> {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(&position) = self.positions.get(&parameter.id) else {
            if parameter.val().is_require_grad() {
                self.error = Some(OverlapError::Unknown);
            }
            return parameter;
        };
        let tensor = self.known.entry(position).or_insert_with(|| {
            let tensor = parameter.val().into_dispatch();
            let input = self.input.clone().unwrap_or_else(|| tensor.clone());
            Dispatch::watch(tensor, input, (self.watched)(position))
        });
        let tensor = tensor.clone();
        parameter.map(|_| Tensor::from_dispatch(tensor))
    }
}

/// Hands over what was not finished by an operation.
pub(crate) struct Rest<'a> {
    pub(crate) parameters: &'a [Parameter],
    pub(crate) positions: &'a HashMap<ParamId, usize>,
    /// Of each parameter, whether its gradient was handed over.
    pub(crate) finished: Vec<bool>,
    pub(crate) store: GradientsParams,
    pub(crate) gradients: &'a mut Gradients,
    pub(crate) error: Option<OverlapError>,
}

impl Rest<'_> {
    fn hand_over<const D: usize>(&mut self, position: usize, id: ParamId) -> Result<(), OverlapError> {
        let Parameter { name, entries } = &self.parameters[position];
        match (self.finished[position], self.store.remove::<D>(id)) {
            (true, None) => Ok(()),
            (true, Some(_)) => Err(OverlapError::TwoWays(name.clone())),
            (false, Some(gradient)) => {
                self.finished[position] = true;
                let data = gradient.try_into_data().map_err(|error| format!("{error:?}"));
                with_values(name, data, |values| self.gradients.ready(name, values))
            }
            (false, None) => {
                self.finished[position] = true;
                Ok(self.gradients.ready(name, &vec![0.0; *entries])?)
            }
        }
    }
}

impl ModuleVisitor for Rest<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        if let (None, Some(&position)) = (&self.error, self.positions.get(&parameter.id)) {
            self.error = self.hand_over::<D>(position, parameter.id).err();
        }
    }
}

/// The means of an update, as burn's optimisers take gradients.
pub(crate) struct Means<'a> {
    pub(crate) parameters: &'a [Parameter],
    pub(crate) positions: &'a HashMap<ParamId, usize>,
    pub(crate) update: &'a Update,
    pub(crate) means: GradientsParams,
    pub(crate) error: Option<OverlapError>,
}

impl ModuleVisitor for Means<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let Some(&position) = self.positions.get(&parameter.id) else { return };
        match self.update.values(&self.parameters[position].name) {
            Ok(values) => {
                let data = TensorData::new(values, parameter.lazy_shape());
                self.means.register(parameter.id, Tensor::<D>::from_data(data, &Device::flex()));
            }
            Err(error) => self.error = Some(gleaner_runtime::Error::from(error).into()),
        }
    }
}
