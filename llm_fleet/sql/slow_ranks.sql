-- Which ranks take longer for their own work than the other ranks of their run for the same work, run after run.
--
-- own_ns: median over a device's steps (edge steps left out) of busy time minus exposed communication, in which a rank
-- mostly waits for others: waiting spreads to all ranks, own work does not. above: own_ns over the median of the run's devices with the same
-- model, layout, phase, batch and GPU. So a run that is slow as a whole flags no rank, and a slow rank is flagged
-- in fast runs too. z compares above with that of all such devices of the dataset, not those of one run only; where no model is known,
-- with those of the same run. A device that is alone in its run is not compared: it or its run may be slow.
--
-- layout: the ranks of the job where the device communicates; without communication they work each for itself. What it does
-- not tell (8 ranks as TP 8, or as TP 4 and PP 2) and the data type are another model, to be named so
-- (--tag model=NAME-tp8-fp8). Work that varies with the prompt is left out: prefill, mixed, and steps without a batch that
-- differ in tokens; steps of these that all have the same tokens are compared with others that have as many.
-- z is robust: 0.6745 * (above - median) / MAD or, where MAD is 0, (above - median) / (1.2533 * mean absolute deviation);
-- null for fewer than four devices, and where all are equal.
--
-- A row: one device of one report in one phase and batch
--   run_name  string  the run
--   report    string  the report
--   host      string  its host
--   rank      int64   its rank; null if unknown
--   device    int64   its device
--   gpu_name  string  the GPU
--   gpu_uuid  string  its UUID; null if the report does not identify it
--   model     string  the model; null if neither --model nor a tag gives it
--   layout    string  ranks of the job, where the device communicates; `no communication` otherwise
--   phase     string  phase of the steps
--   batch     int64   sequences in a step; null if the ranges do not say
--   tokens    int64   tokens of each step, if steps are compared by tokens; null otherwise
--   steps     int64   steps counted; edge steps are excluded
--   own_ns    double  median over steps of busy time minus exposed communication
--   run_ns    double  median of that over the run's devices of the same model, layout, phase, batch, GPU
--   above     double  own_ns / run_ns - 1; null for a device that is alone in its run
--   z         double  robust z-score of above over the fleet; null for fewer than four devices, and where all are equal
--   compared  int64   devices compared, in all runs that have several (in this one, without a model)

WITH spread AS (
    SELECT
        *,
        median(abs(away)) OVER same AS median_away,
        avg(abs(away)) OVER same AS mean_away
    FROM devices_alike()
    WINDOW same AS (PARTITION BY model, of_run, layout, phase, batch, same_tokens, gpu_name)
)
SELECT
    run_name, report, host, rank, device, gpu_name, gpu_uuid, model, layout, phase, batch, same_tokens AS tokens, steps,
    own_ns, run_ns, above,
    robust_z(away, median_away, mean_away, compared) AS z,
    compared
FROM spread
ORDER BY z DESC NULLS LAST, above DESC NULLS LAST, run_name, report, device, phase, batch, tokens;
