--  SPDX-License-Identifier: MIT OR Apache-2.0
--
--  The POSIX trace interface in Ada: a thin binding to <trace.h> of liboverhear_posixtrace.
--
--  A controller creates a trace stream, sets its filter and starts it:
--
--     Trid := Create_With_Log (Null_Process_ID, Attr, File);
--     Add_All_Events (All_Events);
--     Set_Filter (Trid, All_Events);
--     Subtract_From_Filter (Trid, Interesting);
--     Start (Trid);
--     ...
--     Shutdown (Trid);
--
--  The traced process records events by Trace_Event. An analyser reads a log by Open and
--  Get_Next_Event. A failed call raises POSIX.POSIX_Error. docs/posix-trace.md has the rules.

with Interfaces.C;
with System;
with System.Storage_Elements;

with POSIX.IO;
with POSIX.Process_Identification;

package POSIX.Trace is

   --  Attributes of a stream. Its object has to be initialized before use.

   type Attributes is limited private;

   type Stream_Full_Policy is (Stream_Loop, Stream_Until_Full, Stream_Flush);
   type Log_Full_Policy is (Log_Loop, Log_Until_Full, Log_Append);
   type Inheritance_Policy is (Close_For_Child, Inherited);

   procedure Initialize (Attr : in out Attributes);
   procedure Finalize (Attr : in out Attributes);

   function Get_Name (Attr : Attributes) return POSIX_String;
   procedure Set_Name (Attr : in out Attributes; Name : POSIX_String);
   function Get_Generation_Version (Attr : Attributes) return POSIX_String;
   function Get_Inheritance (Attr : Attributes) return Inheritance_Policy;
   procedure Set_Inheritance (Attr : in out Attributes; Policy : Inheritance_Policy);
   function Get_Stream_Full_Policy (Attr : Attributes) return Stream_Full_Policy;
   procedure Set_Stream_Full_Policy (Attr : in out Attributes; Policy : Stream_Full_Policy);
   function Get_Log_Full_Policy (Attr : Attributes) return Log_Full_Policy;
   procedure Set_Log_Full_Policy (Attr : in out Attributes; Policy : Log_Full_Policy);
   function Get_Stream_Size (Attr : Attributes) return Natural;
   procedure Set_Stream_Size (Attr : in out Attributes; Bytes : Natural);
   function Get_Log_Size (Attr : Attributes) return Natural;
   procedure Set_Log_Size (Attr : in out Attributes; Bytes : Natural);
   function Get_Maximum_Data_Size (Attr : Attributes) return Natural;
   procedure Set_Maximum_Data_Size (Attr : in out Attributes; Bytes : Natural);

   --  Event types.

   type Event_Identifier is private;

   Error_Event              : constant Event_Identifier;
   Start_Event              : constant Event_Identifier;
   Stop_Event               : constant Event_Identifier;
   Overflow_Event           : constant Event_Identifier;
   Resume_Event             : constant Event_Identifier;
   Filter_Event             : constant Event_Identifier;
   Flush_Start_Event        : constant Event_Identifier;
   Flush_Stop_Event         : constant Event_Identifier;
   Unnamed_User_Event       : constant Event_Identifier;
   Maximum_Event_Name       : constant := 64;

   --  The type of this name in the calling process; a new name defines it.
   function Open (Name : POSIX_String) return Event_Identifier;

   --  Sets of event types. A new set is empty.

   type Event_Set is private;

   procedure Add_Event (Set : in out Event_Set; Event : Event_Identifier);
   procedure Delete_Event (Set : in out Event_Set; Event : Event_Identifier);
   procedure Add_Event_Set (Set : in out Event_Set; Others_To_Add : Event_Set);
   procedure Delete_Event_Set (Set : in out Event_Set; Others_To_Delete : Event_Set);
   procedure Add_All_Events (Set : in out Event_Set);
   procedure Add_System_Events (Set : in out Event_Set);
   procedure Add_Process_Independent_Events (Set : in out Event_Set);
   procedure Empty (Set : in out Event_Set);
   function Is_Member (Set : Event_Set; Event : Event_Identifier) return Boolean;

   --  Streams. An identifier is valid in the process that created or opened the stream.

   type Trace_Identifier is private;

   function Create
     (For_Process : Process_Identification.Process_ID;
      Attr        : Attributes) return Trace_Identifier;
   function Create_With_Log
     (For_Process : Process_Identification.Process_ID;
      Attr        : Attributes;
      File        : IO.File_Descriptor) return Trace_Identifier;

   procedure Start (Trid : Trace_Identifier);
   procedure Stop (Trid : Trace_Identifier);
   procedure Clear (Trid : Trace_Identifier);
   procedure Flush (Trid : Trace_Identifier);
   procedure Shutdown (Trid : Trace_Identifier);

   --  The filter: the types that are not recorded.
   procedure Set_Filter (Trid : Trace_Identifier; Set : Event_Set);
   procedure Add_To_Filter (Trid : Trace_Identifier; Set : Event_Set);
   procedure Subtract_From_Filter (Trid : Trace_Identifier; Set : Event_Set);
   function Get_Filter (Trid : Trace_Identifier) return Event_Set;

   procedure Get_Attributes (Trid : Trace_Identifier; Attr : in out Attributes);

   type Stream_Status is record
      Running       : Boolean;
      Full          : Boolean;
      Overrun       : Boolean;
      Flushing      : Boolean;
      Flush_Error   : Error_Code;
      Log_Full      : Boolean;
      Log_Overrun   : Boolean;
   end record;

   function Get_Status (Trid : Trace_Identifier) return Stream_Status;

   function Open (Trid : Trace_Identifier; Name : POSIX_String) return Event_Identifier;
   function Get_Name (Trid : Trace_Identifier; Event : Event_Identifier) return POSIX_String;
   function Is_Equal (Trid : Trace_Identifier; Left, Right : Event_Identifier) return Boolean;
   procedure Rewind_Event_Types (Trid : Trace_Identifier);
   procedure Get_Next_Event_Type
     (Trid      : Trace_Identifier;
      Event     : out Event_Identifier;
      Available : out Boolean);

   --  Traced processes.

   procedure Trace_Event (Event : Event_Identifier);
   procedure Trace_Event
     (Event : Event_Identifier;
      Data  : System.Storage_Elements.Storage_Array);

   --  Analysers.

   function Open (File : IO.File_Descriptor) return Trace_Identifier;
   procedure Rewind (Trid : Trace_Identifier);
   procedure Close (Trid : Trace_Identifier);

   type Truncation_Status is (Not_Truncated, Truncated_Record, Truncated_Read);

   --  Seconds and nanoseconds since the epoch of CLOCK_REALTIME.
   type Time_Stamp is record
      Seconds     : Interfaces.C.long;
      Nanoseconds : Interfaces.C.long;
   end record;

   type Event_Info is record
      Event      : Event_Identifier;
      Process    : Process_Identification.Process_ID;
      Address    : System.Address;
      Thread     : Interfaces.C.unsigned_long;   --  as pthread_self returns it
      Kernel_Thread : Interfaces.C.int;          --  as gettid returns it
      Stamp      : Time_Stamp;
      Truncation : Truncation_Status;
   end record;

   --  Both store the data in Data (Data'First .. Last). Available is False if there is no event: at
   --  the end of a log or of an active stream that was shut down; in the second function also if an
   --  active stream has no further event now.
   procedure Get_Next_Event
     (Trid      : Trace_Identifier;
      Info      : out Event_Info;
      Data      : out System.Storage_Elements.Storage_Array;
      Last      : out System.Storage_Elements.Storage_Offset;
      Available : out Boolean);
   procedure Try_Get_Next_Event
     (Trid      : Trace_Identifier;
      Info      : out Event_Info;
      Data      : out System.Storage_Elements.Storage_Array;
      Last      : out System.Storage_Elements.Storage_Offset;
      Available : out Boolean);

   --  For packages on top of this one: the values of C, and errors of the library.

   type Event_Set_Words is array (0 .. 4) of Interfaces.Unsigned_64;
   pragma Convention (C, Event_Set_Words);

   function To_Number (Event : Event_Identifier) return Interfaces.C.unsigned;
   function To_Number (Trid : Trace_Identifier) return Interfaces.C.unsigned_long;
   function To_Event_Set (Words : Event_Set_Words) return Event_Set;

   --  Raises POSIX_Error with the library's message unless the result of a call is 0.
   procedure Check (Result : Interfaces.C.int);

private

   type Attribute_Words is array (0 .. 31) of Interfaces.Unsigned_64;
   pragma Convention (C, Attribute_Words);

   type Attributes is limited record
      Words : aliased Attribute_Words := (others => 0);
   end record;

   type Event_Identifier is new Interfaces.C.unsigned;

   Error_Event        : constant Event_Identifier := 1;
   Start_Event        : constant Event_Identifier := 2;
   Stop_Event         : constant Event_Identifier := 3;
   Overflow_Event     : constant Event_Identifier := 4;
   Resume_Event       : constant Event_Identifier := 5;
   Filter_Event       : constant Event_Identifier := 6;
   Flush_Start_Event  : constant Event_Identifier := 7;
   Flush_Stop_Event   : constant Event_Identifier := 8;
   Unnamed_User_Event : constant Event_Identifier := 64;

   type Event_Set is record
      Words : aliased Event_Set_Words := (others => 0);
   end record;

   type Trace_Identifier is new Interfaces.C.unsigned_long;

end POSIX.Trace;
