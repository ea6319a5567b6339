// React: shows the live progress of a job.

import type { ReactElement } from "react";
import { useJob } from "windlass/react";

export function Progress({ id }: { id: string }): ReactElement {
  const { progress = 0, summary, isEnded, error } = useJob(`/images/${id}/progress`);
  if (error) {
    return <p role="alert">{error.message}</p>;
  }
  return (
    <p aria-busy={!isEnded}>
      <progress value={isEnded ? 1 : progress} /> {summary}
    </p>
  );
}
