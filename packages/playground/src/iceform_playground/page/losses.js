// Derivatives of the losses without the machine, and how they bend: as iceform.expressions.losses.

const sigmoid = (u) => (u >= 0 ? 1 / (1 + Math.exp(-u)) : Math.exp(u) / (1 + Math.exp(u)));
const sechSquared = (u) => 4 * sigmoid(2 * u) * sigmoid(-2 * u);
const tanhOver = (u) => (Math.abs(u) < 1e-4 ? 1 - (u * u) / 3 : Math.tanh(u) / u);

/** l' = height sigma((z - middle)/width), up to a constant: l'' and a curvature above it. */
const step = (width, middle = 0, height = 1) => ({
  bend: (z) => (height / (4 * width)) * sechSquared((z - middle) / (2 * width)),
  above: (z) => (height / (4 * width)) * tanhOver((z - middle) / (2 * width)),
});
const one = () => 1;

/** Every loss by its name and parameters: l', l'' and, where there is one, a curvature above. */
export const LOSSES = {
  squared: () => ({ slope: (z) => z, bend: one, above: one, quadratic: true }),
  huber: () => ({ slope: (z) => Math.max(-1, Math.min(1, z)), bend: (z) => (Math.abs(z) < 1 ? 1 : 0), above: (z) => 1 / Math.max(1, Math.abs(z)) }),
  expectile: ({ expectile: t }) => ({ slope: (z) => (z < 0 ? t : 1 - t) * z, bend: (z) => (z < 0 ? t : 1 - t), above: () => Math.max(t, 1 - t) }),
  squared_hinge: () => ({ slope: (m) => -Math.max(0, 1 - m), bend: (m) => (m < 1 ? 1 : 0), above: one }),
  logistic: () => ({ slope: sigmoid, ...step(1) }),
  absolute: ({ width }) => ({ slope: (z) => Math.tanh(z / width), ...step(width / 2, 0, 2) }),
  quantile: ({ width, quantile }) => ({ slope: (z) => sigmoid(z / width) - quantile, ...step(width) }),
  hinge: ({ width }) => ({ slope: (m) => -sigmoid((1 - m) / width), ...step(width, 1) }),
  'sqrt(z^2 + 0.01)': () => ({ slope: (z) => z / Math.sqrt(z * z + 0.01), bend: (z) => 0.01 / (z * z + 0.01) ** 1.5 }),
  'log(cosh(4*z))/4': () => ({ slope: (z) => Math.tanh(4 * z), bend: (z) => 4 * sechSquared(4 * z) }),
  'softplus(z) - z/2': () => ({ slope: (z) => sigmoid(z) - 0.5, bend: (z) => sechSquared(z / 2) / 4 }),
  'z^2/2': () => ({ slope: (z) => z, bend: one }),
};

/** A clip's square, for Huber's scale. */
export const clipSquared = (z) => Math.min(1, z * z);
