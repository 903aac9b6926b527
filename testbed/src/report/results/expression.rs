//! An expression over the numbers of one measurement, such as `1e3 * seconds` or `(a + b) / min(a, b)`.

use std::collections::BTreeSet;
use std::str::FromStr;

/// Numbers and names, joined by `+`, `-`, `*`, `/`, `min(a, b)`, `max(a, b)` and brackets.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A number.
    Number(f64),
    /// What a measurement has under this name.
    Name(String),
    /// Two of them, and what is done with both.
    Pair(Operator, Box<(Expression, Expression)>),
}

/// What is done with two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `a + b`
    Add,
    /// `a - b`
    Subtract,
    /// `a * b`
    Multiply,
    /// `a / b`
    Divide,
    /// `min(a, b)`
    Least,
    /// `max(a, b)`
    Most,
}

impl Expression {
    /// Its value, with the numbers that `of` has by their names; none where one of these is missing, or it is infinite.
    pub fn value(&self, of: &dyn Fn(&str) -> Option<f64>) -> Option<f64> {
        let value = match self {
            Self::Number(number) => *number,
            Self::Name(name) => of(name)?,
            Self::Pair(operator, pair) => {
                let (a, b) = (pair.0.value(of)?, pair.1.value(of)?);
                match operator {
                    Operator::Add => a + b,
                    Operator::Subtract => a - b,
                    Operator::Multiply => a * b,
                    Operator::Divide => a / b,
                    Operator::Least => a.min(b),
                    Operator::Most => a.max(b),
                }
            }
        };
        value.is_finite().then_some(value)
    }

    /// Adds the names in it.
    pub fn names(&self, into: &mut BTreeSet<String>) {
        match self {
            Self::Number(_) => {}
            Self::Name(name) => drop(into.insert(name.clone())),
            Self::Pair(_, pair) => [&pair.0, &pair.1].into_iter().for_each(|side| side.names(into)),
        }
    }
}

impl FromStr for Expression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut reader = Reader { rest: text.trim_start() };
        let found = reader.sum().filter(|_| reader.rest.is_empty());
        found.ok_or_else(|| {
            let place = if reader.rest.is_empty() { "its end" } else { reader.rest };
            format!("'{text}' cannot be read from {place} on; expected names and numbers with + - * / ( ) min(a, b) max(a, b)")
        })
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// The longest beginning that fits, and the space behind it.
    fn take(&mut self, length: usize) -> &'a str {
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest.trim_start();
        token
    }

    fn takes(&mut self, token: char) -> bool {
        let found = self.rest.starts_with(token);
        if found {
            self.take(token.len_utf8());
        }
        found
    }

    fn sum(&mut self) -> Option<Expression> {
        self.chain(&[('+', Operator::Add), ('-', Operator::Subtract)], |reader| {
            reader.chain(&[('*', Operator::Multiply), ('/', Operator::Divide)], Self::one)
        })
    }

    fn chain(
        &mut self,
        operators: &[(char, Operator)],
        mut part: impl FnMut(&mut Self) -> Option<Expression>,
    ) -> Option<Expression> {
        let mut left = part(self)?;
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.takes(*sign)) {
            left = Expression::Pair(*operator, Box::new((left, part(self)?)));
        }
        Some(left)
    }

    fn one(&mut self) -> Option<Expression> {
        if self.takes('(') {
            return self.sum().filter(|_| self.takes(')'));
        }
        let is_number = self.rest.starts_with(|c: char| c.is_ascii_digit());
        let mut before = ' ';
        let end = self.rest.find(|c: char| {
            let is_sign_of_power = is_number && before == 'e' && c == '-';
            before = c;
            !(c.is_ascii_alphanumeric() || "_@.".contains(c) || is_sign_of_power)
        });
        let word = self.take(end.unwrap_or(self.rest.len()));
        match word {
            "" => None,
            _ if is_number => word.parse().ok().map(Expression::Number),
            "min" | "max" if self.takes('(') => {
                let operator = if word == "min" { Operator::Least } else { Operator::Most };
                let left = self.sum().filter(|_| self.takes(','))?;
                let pair = (left, self.sum().filter(|_| self.takes(')'))?);
                Some(Expression::Pair(operator, Box::new(pair)))
            }
            name => Some(Expression::Name(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_by_hand() {
        let of = |name: &str| {
            [("a", 2.0), ("b_c", 6.0), ("loss@10", 0.5)].iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
        };
        for (text, value) in [
            ("a", Some(2.0)),
            ("1e3 * a", Some(2000.0)),
            ("2.5e-1*b_c", Some(1.5)),
            ("a - b_c - 1", Some(-5.0)),
            ("b_c / a / 2", Some(1.5)),
            ("a + b_c * 2", Some(14.0)),
            ("(a + b_c) * 2", Some(16.0)),
            ("(1 + a) / (1 + a - min(1, 0.5 * a))", Some(1.5)),
            (" max( a ,b_c ) ", Some(6.0)),
            ("loss@10 * 4", Some(2.0)),
            ("a / (a - 2)", None),
            ("d", None),
        ] {
            assert_eq!(text.parse::<Expression>().unwrap().value(&of), value, "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_with_its_place() {
        for (text, place) in [
            ("", "its end"),
            ("a +", "its end"),
            ("a b", "b"),
            ("(a", "its end"),
            ("min(a)", ")"),
            ("a ? 2", "? 2"),
        ] {
            let error = text.parse::<Expression>().unwrap_err();
            assert!(error.contains(&format!("from {place} on; expected names")), "{error}");
        }
    }
}
