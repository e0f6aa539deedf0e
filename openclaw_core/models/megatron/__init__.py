"""The student and the teacher on megatron-core: building, packing, scoring, exporting."""
