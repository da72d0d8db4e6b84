// Answers may come in another order than the questions: what only the latest question counts for.

/** Questions of which each takes the place of the one before it. */
export class Turns {
  constructor() {
    this.latest = 0;
  }

  /** Begins one; what it gives tells whether it is still the latest. */
  begin() {
    this.latest += 1;
    const mine = this.latest;
    return () => mine === this.latest;
  }
}
