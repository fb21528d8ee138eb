// report/src.hpp -- what the room report has compiled once.
// In: WEFT_SEPARATE_COMPILATION. Out: the definitions; weft/src.hpp includes it, and so does one file of weft's
// library.
#pragma once

#include <weft/report/allocator.ipp>
#include <weft/report/chrome_trace.ipp>
#include <weft/report/csv_logger.ipp>
#include <weft/report/event_file.ipp>
#include <weft/report/json.ipp>
#include <weft/report/log_file.ipp>
#include <weft/report/logger.ipp>
#include <weft/report/memory_count.ipp>
#include <weft/report/memory_phases.ipp>
#include <weft/report/memory_summary.ipp>
#include <weft/report/progress.ipp>
#include <weft/report/step_timer.ipp>
#include <weft/report/tensorboard_logger.ipp>
