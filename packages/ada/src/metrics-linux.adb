--  SPDX-License-Identifier: MIT OR Apache-2.0

with Interfaces.C;

package body Metrics.Linux is

   use Interfaces;

   function Bounded (Number : Unsigned_64) return Natural is
     (Natural (Unsigned_64'Min (Number, Unsigned_64 (Natural'Last))));

   function Object (From : Metric_Result) return System.Address is
     (if From.List.Object = null then System.Null_Address else From.List.Object.Address);

   function Thread (From : Metric_Result_Element) return Natural is
     (Bounded (Unsigned_64 (From.Thread)));

   function Own_Events (From : Metric_Result_Element) return Natural is (Bounded (From.Own));

   function Missed (From : Metric_Result_Element) return Natural is (Bounded (From.Missed));

   function Missed (From : Metric_Result) return Natural is
      function C (Results : System.Address) return Unsigned_64;
      pragma Import (C, C, "oh_trace_results_missed");
   begin
      return Bounded (C (Object (From)));
   end Missed;

   function Found (From : Metric_Result) return Natural is
      function C (Results : System.Address) return Interfaces.C.size_t;
      pragma Import (C, C, "oh_trace_results_count");
   begin
      return Bounded (Unsigned_64 (C (Object (From))));
   end Found;

end Metrics.Linux;
